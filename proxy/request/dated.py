"""Where a prompt tells the date or the time: from there on it is another prompt tomorrow.

A date in a system text or in the description of a tool changes the exact prefix each day, and all that follows it is
prefilled again. What precedes the line with the first one is likely to stay. Guessed by how dates are written: what
only looks like one, in a line before, leaves less to go on from, or nothing, and a file that nobody needs.
"""

import re

_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    "|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DATED = re.compile(
    rf"""
    \b \d{{4}} [-/.] \d\d? [-/.] \d\d? \b             # 2026-12-01
    | \b \d\d? [-/.] \d\d? [-/.] \d{{4}} \b           # 1.12.2026
    | \b {_MONTH} \.? \s \d\d? (?:st|nd|rd|th)? \b    # December 1st
    | \b \d\d? \.? \s {_MONTH} \b                     # 1 December
    | \b (?:[01]?\d|2[0-3]) : [0-5]\d \b              # 9:41
    | \b today \b | \b current \s (?:date|time) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def before_first_date(text: str) -> str:
    """The lines before the first one that tells a date or a time; none where none does."""
    found = _DATED.search(text)
    return text[: text.rfind("\n", 0, found.start()) + 1] if found else ""
