"""What a patched server writes beside a state file is proven along with it."""

import dataclasses
from pathlib import Path

import pytest

from proxy.checkpoints.inspection import Expected, FileVerdict, inspect, seal_of
from proxy.checkpoints.key import companion_name, final_name
from tests.checkpoints.state_files import KEY, STATE, TOKENS, expected_of, head, settled, state_file

WHOLE_BYTES = len(head()) + len(STATE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return state_file(tmp_path / final_name(KEY))


def test_a_fresh_save_is_sealed_with_its_companion(path: Path) -> None:
    """Right after a save nothing is recorded yet: the inspection gives what to record."""
    companion = path.with_name(companion_name(path.name))
    companion.write_bytes(b"context checkpoints")
    found = inspect(path, Expected(TOKENS, WHOLE_BYTES, 2, check_companion=False))
    assert (seal_of(path), seal_of(companion)) == (found.seal, found.companion)


def test_a_companion_that_changed_is_damage(path: Path) -> None:
    """What a patched server would read beside the state is proven too."""
    companion = path.with_name(companion_name(path.name))
    companion.write_bytes(b"context checkpoints")
    settled(companion)
    expected = dataclasses.replace(expected_of(path), companion=seal_of(companion))
    assert inspect(path, expected).verdict is FileVerdict.WHOLE
    companion.write_bytes(b"context checkpointz")
    assert inspect(path, expected).verdict is FileVerdict.COMPANION


def test_a_companion_from_nowhere_is_damage(path: Path) -> None:
    """A companion that wasn't there at the save isn't handed to a server."""
    path.with_name(companion_name(path.name)).write_bytes(b"somebody's")
    assert inspect(path, expected_of(path)).verdict is FileVerdict.COMPANION


def test_a_lost_companion_does_not_matter(path: Path) -> None:
    """The state is whole without its companion, only slower."""
    expected = dataclasses.replace(expected_of(path), companion=seal_of(path))
    assert inspect(path, expected).verdict is FileVerdict.WHOLE
