"""Short questions to a llama-server, synchronously, for the tests of what the demo builds."""

import http.client
from typing import Any

import orjson

from proxy.demo.servers import LlamaServer


def ask(server: LlamaServer, path: str, question: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and answer of a POST with `question`, or of a GET without."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        body = None if question is None else orjson.dumps(question)
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, orjson.loads(answer.read())
    finally:
        connection.close()


def tokens(server: LlamaServer, text: str) -> list[str]:
    """The pieces that the server's model makes of a text."""
    _, answer = ask(server, "/tokenize", {"content": text, "parse_special": True, "with_pieces": True})
    return [token["piece"] for token in answer["tokens"]]


def said(server: LlamaServer, prompt: str | list[int]) -> dict[str, float]:
    """The likeliest next tokens, with their log-probabilities."""
    question = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 5, "cache_prompt": False}
    _, answer = ask(server, "/completion", question)
    likeliest = answer["completion_probabilities"][0]["top_logprobs"]
    return {choice["token"]: choice["logprob"] for choice in likeliest}
