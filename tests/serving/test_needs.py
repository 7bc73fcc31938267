"""What a request is called: the name is remembered by what decides it, and by all of that."""

from dataclasses import replace

import orjson
import pytest

from proxy.request.fingerprint import ModelIdentity, fingerprint
from proxy.serving.needs import Needs
from proxy.serving.ticket import Ticket
from proxy.serving.visit import understand
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
    needs = Needs(at)
    at.model.identity = IDENTITY
    needs.identify(asked(BODY, "pi/1.0"))
    at.model.identity = identity
    needs.identify(later := asked(body, agent))
    visit = later.visit
    assert visit.request is not None
    assert visit.prefix is not None
    assert fingerprint(visit.request, visit.prefix, identity, agent) == later.fingerprint
