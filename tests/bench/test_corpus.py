"""Random days on a real server: the proxy never makes it prefill more than it would have without."""

import pytest

from bench.corpus import Day
from proxy.demo.servers import ServerBinary
from tests.bench.comparing import compare, days


@pytest.mark.parametrize("day", days(lambda day: not day.model.startswith("swa")))
def test_never_more_than_directly(day: Day, llama_binary: ServerBinary) -> None:
    """Beyond 8 tokens a new prefix and 24 a resume, with and without checkpoints."""
    compare(day, llama_binary)
