"""`pi-prefix-cache warm`: have the prefix that was used last restored or built now, by the running proxy."""

import sys
from collections.abc import Sequence
from http import HTTPStatus

from proxy.commands import arguments
from proxy.commands.admin_client import running_proxy
from proxy.commands.arguments import write_json

SETTINGS = (*arguments.LISTENER, "warm_timeout", "restore_timeout")
NOT_POSSIBLE = "not_possible_now"
WORDS = {
    "restored": "the last prefix was restored from its checkpoint",
    "built": "the last prefix was prefilled",
    "already_warm": "a slot holds the last prefix already",
    "busy": "requests run, or have come meanwhile: their prefix is prepared anyway",
    "observing_only": "OBSERVE_ONLY=1: nothing is prepared",
    "no_prefix_known": "no prefix is known yet: none was asked for since the start, and none is on disk",
    "slots_hold_conversations": "slots hold conversations that would be lost (the server keeps no copies: --cache-ram)",
    NOT_POSSIBLE: "the server can't be asked now; the proxy's log says why",
}


def warm(argv: Sequence[str]) -> int:
    """Ask for it; returns the exit code."""
    words = "Have the last prefix restored or built now, so that the next session finds it."
    given = arguments.read(argv, "warm", words, settings=SETTINGS)
    arguments.tell_warnings(given)
    patience_s = given.settings.warm_timeout + given.settings.restore_timeout
    client = running_proxy(given.settings)
    answer = client.ask("/warm", "POST", patience_s)
    if given.as_json:
        write_json(answer.json)
    else:
        told = answer.json.get("warmed") or answer.error
        status = client.status() if told == NOT_POSSIBLE else {}
        if status and status["server"]["state"] == "unreachable":
            sys.stdout.write(f"llama-server at {status['proxy']['upstream']} can't be reached\n")
        else:
            sys.stdout.write(f"{WORDS.get(told, told)}\n")
    return 0 if answer.status == HTTPStatus.OK else 1
