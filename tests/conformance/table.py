"""One request for each thing llama-server can be asked, by the kind of server that it is asked of."""

from typing import Any

from proxy.demo.sessions import TOOLS, next_turn, session
from tests.conformance.conftest import KEY
from tests.conformance.exchange import Ask

CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 6}
SHORT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "say why"}], **GREEDY}
ALONE = {**SHORT, "cache_prompt": False}
"""Prefilled whole each time, so that even what was prefilled is the same."""
AGENT = {**session("/a", prefix_tokens=600), **GREEDY}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
FORM_TYPE = "multipart/form-data; boundary=--part"
FORM = b'----part\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n----part--\r\n'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
RIGHT = {"Authorization": f"Bearer {KEY}"}
FOREIGN = {"Origin": "http://elsewhere.test"}
PREFLIGHT = {
    **FOREIGN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-mine",
}


def chat(**fields: Any) -> Ask:
    return Ask(CHAT, {**ALONE, **fields})


PLAIN = {
    "health": Ask("/health"),
    "health-v1": Ask("/v1/health"),
    "health-head": Ask("/health", method="HEAD"),
    "models": Ask("/v1/models"),
    "models-old": Ask("/models"),
    "props": Ask("/props"),
    "props-post": Ask("/props", {}),
    "slots": Ask("/slots"),
    "slots-fail": Ask("/slots?fail_on_no_slot=1"),
    "metrics": Ask("/metrics"),
    "lora": Ask("/lora-adapters"),
    "lora-post": Ask("/lora-adapters", []),
    "nowhere": Ask("/nowhere?x=%2F&y"),
    "wrong-method": Ask("/v1/chat/completions", method="DELETE"),
    "root": Ask("/"),
    "tokenize": Ask("/tokenize", {"content": "a b", "add_special": True, "with_pieces": True}),
    "detokenize": Ask("/detokenize", {"tokens": [97, 98]}),
    "apply-template": Ask("/apply-template", {**AGENT, "stream": False}),
    "completion": Ask("/completion", {"prompt": "a b", "n_predict": 4, "temperature": 0, "n_probs": 2}),
    "completion-stream": Ask("/completion", {"prompt": "a b", "n_predict": 4, "temperature": 0, "stream": True}),
    "completions": Ask("/v1/completions", {"prompt": "a b", **GREEDY, "logprobs": 2}),
    "completions-stream": Ask("/v1/completions", {"prompt": "a b", **GREEDY, "stream": True}),
    "infill": Ask("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "temperature": 0}),
    "rerank": Ask("/rerank", {"query": "a", "documents": ["a", "b"]}),
    "embeddings": Ask("/v1/embeddings", {"input": "a b"}),
    "messages": Ask("/v1/messages", SHORT),
    "messages-stream": Ask("/v1/messages", {**SHORT, "stream": True}),
    "messages-count": Ask("/v1/messages/count_tokens", {"model": "m", "messages": SHORT["messages"]}),
    "responses": Ask("/v1/responses", {"model": "m", "input": "say why", "temperature": 0, "max_output_tokens": 6}),
    "responses-stream": Ask(
        "/v1/responses",
        {"model": "m", "input": "say why", "temperature": 0, "max_output_tokens": 6, "stream": True},
    ),
    "responses-old": Ask("/responses", {"input": "say why", "temperature": 0, "max_output_tokens": 6}),
    "completions-old": Ask("/completions", {"prompt": "a b", "n_predict": 4, "temperature": 0}),
    "transcriptions": Ask("/v1/audio/transcriptions", FORM, headers={"Content-Type": FORM_TYPE}),
    "chat-control": Ask("/v1/chat/completions/control", {"id": "none"}),
    "chat-count": Ask("/v1/chat/completions/input_tokens", SHORT),
    "responses-count": Ask("/v1/responses/input_tokens", {"input": "say why"}),
    "tools": Ask("/tools"),
    "cors-proxy": Ask("/cors-proxy?url=http://127.0.0.1:1/"),
    "stream-of-none": Ask("/v1/stream?id=none"),
    "streams-lookup": Ask("/v1/streams/lookup", {}),
    "load": Ask("/models/load", {"model": "m"}),
    "form": Ask(CHAT, FORM, headers={"Content-Type": FORM_TYPE}),
    "xml": Ask(CHAT, b"<a/>", headers={"Content-Type": "text/xml"}),
    "chat": chat(),
    "chat-old": Ask("/chat/completions", ALONE),
    "chat-stream": chat(stream=True),
    "chat-usage": chat(stream=True, stream_options={"include_usage": True}),
    "chat-tools": chat(tools=TOOLS),
    "chat-tools-stream": chat(tools=TOOLS, stream=True),
    "chat-tool-required": chat(tools=TOOLS[:1], tool_choice="required", max_tokens=40),
    "chat-n": chat(n=2),
    "chat-n-stream": chat(n=2, stream=True),
    "chat-n-too-many": chat(n=9),
    "chat-logprobs": chat(logprobs=True, top_logprobs=3),
    "chat-logprobs-stream": chat(logprobs=True, top_logprobs=3, stream=True),
    "chat-json": chat(response_format={"type": "json_object"}, max_tokens=12),
    "chat-schema": chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, max_tokens=12),
    "chat-timings": chat(stream=True, timings_per_token=True),
    "chat-progress": chat(stream=True, return_progress=True),
    "chat-image": chat(messages=[{"role": "user", "content": [PICTURE]}]),
    "chat-own-slot": chat(id_slot=1),
    "chat-odd": Ask(CHAT, {"messages": "none"}),
    "chat-nothing": Ask(CHAT, b""),
    "chat-too-long": chat(messages=[{"role": "user", "content": "a b c d " * 12000}]),
    "agent": Ask(CHAT, AGENT),
    "agent-again": Ask(CHAT, AGENT),
    "agent-next": Ask(CHAT, next_turn(AGENT, "done", "go on")),
    "agent-whole": Ask(
        CHAT, {name: value for name, value in AGENT.items() if name not in ("stream", "stream_options")}
    ),
    "save": Ask("/slots/1?action=save", {"filename": "mine.bin"}),
    "restore": Ask("/slots/1?action=restore", {"filename": "mine.bin"}),
    "restore-missing": Ask("/slots/1?action=restore", {"filename": "none.bin"}),
    "erase": Ask("/slots/1?action=erase", {}),
    "act-oddly": Ask("/slots/1?action=dance", {}),
    "save-elsewhere": Ask("/slots/1?action=save", {"filename": "../mine.bin"}),
    "preflight": Ask(CHAT, method="OPTIONS", headers=PREFLIGHT),
    "cors": Ask(CHAT, ALONE, headers=FOREIGN),
    "cors-get": Ask("/v1/models", headers=FOREIGN),
}
KEYED = {
    "no-key": Ask(CHAT, AGENT),
    "wrong-key": Ask(CHAT, AGENT, headers={"Authorization": "Bearer another"}),
    "right-key": Ask(CHAT, AGENT, headers=RIGHT),
    "right-x-api-key": Ask(CHAT, AGENT, headers={"X-Api-Key": KEY}),
    "health": Ask("/health"),
    "models": Ask("/v1/models"),
    "props": Ask("/props"),
    "props-with-key": Ask("/props", headers=RIGHT),
    "slots-without": Ask("/slots"),
    "metrics-off": Ask("/metrics", headers=RIGHT),
    "preflight": Ask(CHAT, method="OPTIONS", headers=PREFLIGHT),
}
EMBEDDING = {
    "embeddings": Ask("/v1/embeddings", {"input": ["a b", "c"]}),
    "embeddings-base64": Ask("/v1/embeddings", {"input": "a b", "encoding_format": "base64"}),
    "embeddings-old": Ask("/embeddings", {"content": "a b"}),
    "embedding": Ask("/embedding", {"content": "a b"}),
    "chat": Ask(CHAT, SHORT),
}
RANKING = {
    "rerank": Ask("/rerank", {"query": "a", "documents": ["a", "b"]}),
    "rerank-v1": Ask("/v1/rerank", {"query": "a", "documents": ["a", "b"], "top_n": 1}),
}
INFILLING = {
    "infill": Ask("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "temperature": 0}),
    "infill-stream": Ask(
        "/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "stream": True, **GREEDY}
    ),
}
ROUTING = {
    "models": Ask("/v1/models"),
    "props": Ask("/props"),
    "props-of-one": Ask("/props?model=alpha"),
    "props-of-none": Ask("/props?model=nobody"),
    "lora-of-one": Ask("/lora-adapters?model=beta"),
    "slots": Ask("/slots"),
    "slots-of-none": Ask("/slots?model=nobody&autoload=false"),
    "metrics-of-one": Ask("/metrics?model=alpha"),
    "health": Ask("/health"),
    "tokenize": Ask("/tokenize", {"model": "alpha", "content": "a b"}),
    "tokenize-for-none": Ask("/tokenize", {"content": "a b"}),
    "completions": Ask("/v1/completions", {"model": "beta", "prompt": "a b", **GREEDY}),
    "messages": Ask("/v1/messages", {**SHORT, "model": "alpha"}),
    "responses": Ask("/v1/responses", {"model": "beta", "input": "say why", "temperature": 0, "max_output_tokens": 6}),
    "chat-alpha": chat(model="alpha"),
    "chat-beta": chat(model="beta"),
    "chat-stream": chat(model="beta", stream=True),
    "chat-of-none": chat(model="nobody"),
    "agent-alpha": Ask(CHAT, {**AGENT, "model": "alpha"}),
    "agent-beta": Ask(CHAT, {**AGENT, "model": "beta"}),
    "agent-alpha-again": Ask(CHAT, {**AGENT, "model": "alpha"}),
    "restore-missing": Ask("/slots/0?action=restore", {"model": "alpha", "filename": "none.bin"}),
    "save-for-none": Ask("/slots/0?action=save", {"filename": "mine.bin"}),
    "load-none": Ask("/models/load", {"model": "nobody"}),
    "unload-none": Ask("/models/unload", {"model": "nobody"}),
    "delete-none": Ask("/models", method="DELETE"),
    "preflight": Ask(CHAT, method="OPTIONS", headers=PREFLIGHT),
}
TABLES = {
    "plain": PLAIN,
    "keyed": KEYED,
    "embedding": EMBEDDING,
    "ranking": RANKING,
    "infilling": INFILLING,
    "routing": ROUTING,
}

ROWS = [(kind, name, what) for kind, table in TABLES.items() for name, what in table.items()]
