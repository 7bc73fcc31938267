"""What the tests of the index are given."""

from pathlib import Path

import pytest

from proxy.checkpoints.index import Index
from tests.checkpoints.index_directory import NOW
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "index"


@pytest.fixture
def written(directory: Path) -> Path:
    """A directory with a good index of two checkpoints, its proxy ended."""
    index = Index.open(directory, NOW)
    index.put(checkpoint(KEY, fingerprints=("f1",)))
    index.put(checkpoint(OTHER_KEY, fingerprints=("f2",)))
    assert index.close() is None
    return directory
