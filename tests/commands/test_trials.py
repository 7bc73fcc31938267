"""What the trials leave behind."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.commands.findings import advice
from proxy.commands.trials import Trials, able_checks
from proxy.llama.client import ControlFailed
from proxy.serving.looked_over import is_as_left
from proxy.settings import Settings
from proxy.slots.capabilities import Capabilities
from proxy.slots.ledger import Look
from tests.slots.beliefs import look


class Slots:
    """Shows slots, one look after the other; the last one again and again."""

    def __init__(self, *looks: list[Look] | None) -> None:
        self.looks = list(looks)

    async def slots(self, _: Any) -> list[Look]:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if found is None:
            raise ControlFailed("timed out")
        return found


BUSY, FULL, LEFT = [look(0, 7, 30, is_busy=True)], [look(0, 7, 30)], [look(0, 7)]


@pytest.mark.parametrize("before", [[], [BUSY], [BUSY, FULL, None, BUSY]], ids=["at once", "later", "much later"])
async def test_a_server_that_is_still_at_the_last_trial_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[list[Look] | None]
) -> None:
    """Its slots are noted as they were left, when they are idle and empty; a look that fails is made again."""

    async def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(Trials, "_run", nothing)
    monkeypatch.setattr("proxy.commands.trials.LOOKS_APART_S", 0.001)
    client = Slots(*before, LEFT)
    met = SimpleNamespace(looks=[look(0, None)], process=SimpleNamespace(marker="m"), client=client, auth={})
    settings = Settings(_env_file=None, dir=tmp_path / "index")  # type: ignore[call-arg]
    assert [] == await Trials(cast("Any", met), settings, may_save=True).run()
    assert await asyncio.to_thread(is_as_left, tmp_path / "index", "m", LEFT)


@pytest.mark.parametrize(("rolls_back", "keeps_copies"), [(None, None), (False, None), (None, True)])
def test_what_answers_have_told_of_a_server_that_was_not_probed_is_not_all(
    rolls_back: bool | None, keeps_copies: bool | None
) -> None:
    """Half of it learned, it is still said that the rest is not known."""
    able, unknown = Capabilities(rolls_back=rolls_back, keeps_copies=keeps_copies), advice("probe", "not known")
    assert [unknown] == [*able_checks(able, persists=True, unknown=unknown)]
