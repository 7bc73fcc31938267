"""What a request is called: the name is remembered by what decides it, and by all of that."""

from array import array
from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from proxy.llama.renderer import LikelyToStay
from proxy.request.fingerprint import ModelIdentity, fingerprint
from proxy.serving import needs
from proxy.serving.model import ExactPrefix
from proxy.serving.needs import Needs
from proxy.serving.ticket import Ticket
from proxy.serving.visit import understand
from proxy.slots.capabilities import Capabilities
from proxy.slots.holding import Nothing
from tests.serving.running import sessions
from tests.serving.test_accounting import context, ticket

IDENTITY = ModelIdentity("m", "", "", "", "", "")
(BODY,) = sessions("/a")
OTHER_TOOLS = {**BODY, "tools": BODY["tools"][:-1]}


def asked(body: dict[str, object], agent: str) -> Ticket:
    return ticket(visit=understand(orjson.dumps(body), {"User-Agent": agent}, context().settings))


@pytest.mark.parametrize(
    ("body", "agent", "identity"),
    [
        (BODY, "pi/1.0", IDENTITY),
        (OTHER_TOOLS, "pi/1.0", IDENTITY),
        (BODY, "pi/2.0", IDENTITY),
        (BODY, "pi/1.0", replace(IDENTITY, model_id="n")),
    ],
    ids=["the same again", "other tools", "another client", "another model"],
)
def test_a_fingerprint_is_remembered_for_its_own_only(
    body: dict[str, object], agent: str, identity: ModelIdentity
) -> None:
    """As it would be reckoned anew."""
    at = context()
    names = Needs(at)
    at.model.identity = IDENTITY
    names.identify(asked(BODY, "pi/1.0"))
    at.model.identity = identity
    names.identify(later := asked(body, agent))
    visit = later.visit
    assert visit.request is not None
    assert visit.prefix is not None
    assert fingerprint(visit.request, visit.prefix, identity, agent) == later.fingerprint


UNTRIED = Capabilities(restores=True)
TRIED = replace(UNTRIED, rolls_back=False, is_windowed=False)


@pytest.mark.parametrize(
    ("able", "is_asked"),
    [
        (TRIED, True),
        (replace(TRIED, rolls_back=True, window=512), True),
        (replace(TRIED, rolls_back=True, window=0), False),
        (replace(TRIED, restores=False), False),
        (UNTRIED, False),
    ],
    ids=["can't go back", "swa-full", "goes back freely", "restores nothing", "nobody has tried"],
)
async def test_stems_are_looked_for_where_the_server_does_not_find_as_much_itself(
    monkeypatch: pytest.MonkeyPatch, able: Capabilities, is_asked: bool
) -> None:
    """Once for each prefix."""
    at, calls = context(Nothing()), list[str]()
    at.store = cast("Any", SimpleNamespace(is_on=True))
    at.model.able, at.model.identity = able, IDENTITY

    async def nothing_more(*_: Any, **__: Any) -> tuple[int, ...]:
        return ()

    async def looked_for(*_: Any) -> LikelyToStay:
        calls.append("stems")
        return LikelyToStay(array("i"), array("i"))

    monkeypatch.setattr(needs, "exact_head", nothing_more)
    monkeypatch.setattr(needs, "likely_to_stay", looked_for)
    told = asked(BODY, "pi/1.0")
    at.model.remember(told.visit.rendering, ExactPrefix("P", array("i", range(900)), 900, date.today()))
    for _ in range(2):
        assert () == (await Needs(at).of(told)).stems
    assert is_asked == bool(calls)
    assert len(calls) <= 1
