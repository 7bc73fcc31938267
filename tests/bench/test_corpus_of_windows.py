"""Random days with a sliding window; a file of its own, so that both halves run at once."""

import pytest

from bench.corpus import Day
from proxy.demo.servers import ServerBinary
from tests.bench.comparing import compare, days


@pytest.mark.parametrize("day", days(lambda day: day.model.startswith("swa")))
def test_never_more_than_directly(day: Day, llama_binary: ServerBinary) -> None:
    """Beyond 8 tokens a new prefix and 24 a resume, with and without checkpoints."""
    compare(day, llama_binary)
