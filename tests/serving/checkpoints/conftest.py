"""What the tests of checkpoints are given: empty directories, a count of saves and restores, a proxy left to itself."""

from pathlib import Path

import pytest

from proxy.serving import acquaintance
from proxy.serving.lifecycle import Lifecycle
from tests.serving.checkpoints.persisting import Calls, Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Empty directories for one test, on a machine that may be busy: a server is not given up after a moment."""
    monkeypatch.setattr(acquaintance, "GLANCE_S", 5.0)
    return Place(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts saves and restores, the probe's own included."""
    return Calls(monkeypatch)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy does nothing by itself: a test calls the lifecycle when it is time."""
    monkeypatch.setattr(Lifecycle, "start", lambda _: None)
