"""What a copy to host memory takes is measured on the server itself, and what is shorter than that is let go."""

from tests.conftest import StartLlama
from tests.serving.running import running, sessions


async def test_a_copy_is_measured_against_the_prefill(start_llama: StartLlama) -> None:
    """In tokens: more than nothing, far less than a session; the rate is that of the warm-up."""
    first, second = sessions("/a", "/b")
    server = start_llama("hybrid", "-np", "1")
    async with running(server) as proxied:
        await proxied.ask(first)
        await proxied.ask(second)
        model = proxied.proxy.engine.model
        (warmed,) = proxied.heard.warm_ups
        assert 0 < model.copy_ms
        assert warmed.prompt_ms / warmed.prompt_n == model.prompt_ms_per_token
        assert 0 < model.able.copy_tokens < 1000
