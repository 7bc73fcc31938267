"""Servers that a test is tried on: in `make test` those that differ most, in `make test-long` the others, too."""

from itertools import product
from typing import Any

import pytest

ONE_SLOT = ("-np", "1")
DEFAULT: tuple[str, ...] = ()
IDS = {ONE_SLOT: "one-slot", DEFAULT: "default-flags"}
WITH_LONG_TESTS = {("dense", ONE_SLOT), ("swa", ONE_SLOT)}
"""A dense model's one slot is what its four are, one after the other; a window's is in the corpus of days."""


def long(*values: object) -> Any:
    """A variant that is tried with the long tests only."""
    return pytest.param(*values, marks=pytest.mark.long)


servers = pytest.mark.parametrize(
    ("kind", "flags"),
    [
        pytest.param(
            *server, marks=[pytest.mark.long] * (server in WITH_LONG_TESTS), id=f"{server[0]}-{IDS[server[1]]}"
        )
        for server in product(("dense", "hybrid", "swa"), (ONE_SLOT, DEFAULT))
    ],
)
