"""Where a prompt tells the date: found as dates are written, and nowhere else."""

import pytest

from proxy.request.dated import before_first_date

BEFORE = "You are an agent.\n# Rules\n"


@pytest.mark.parametrize(
    "line",
    [
        "Today is day one",
        "Current date: whatever",
        "as of 2026-12-01",
        "as of 2026/12/1.",
        "since 1.12.2026",
        "on 12/01/2026",
        "December 1, 2026",
        "Dec. 1st",
        "1 December",
        "it is 9:41",
    ],
)
def test_a_line_with_a_date_or_a_time_ends_it(line: str) -> None:
    """Whatever follows, and whatever stands before the date in its line."""
    assert before_first_date(f"{BEFORE}{line}\nmore, 2026-12-02\n") == BEFORE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "YYYY-MM-DD",
        "version 1.2.3",
        "127.0.0.1:8080",
        "may 5xx answers",
        "a todays b",
        "ratio 16:90",
        "line 24:00",
        "march on",
        "2 decimal places",
        "3 separate",
    ],
)
def test_what_is_no_date_ends_nothing(text: str) -> None:
    """Formats, versions, addresses, numbers of other kinds."""
    assert before_first_date(f"{BEFORE}{text}\nmore\n") == ""


def test_a_date_in_the_first_line_leaves_nothing() -> None:
    """No line precedes it."""
    assert before_first_date("Today Date: 01 Dec 2026\n# Rules\n") == ""
