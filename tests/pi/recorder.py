"""Stands between Pi and the proxy: passes everything on and keeps what was asked and what was answered.

Owns: a plain copy of each exchange, so that the proxy's log can be held against what Pi really got. Refuses to know
anything of the proxy.
"""

import http.client
import json
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

BLOCK = 65536
ANSWER_S = 60


@dataclass(frozen=True)
class Exchange:
    """One request of Pi's and its answer, which was cut if it isn't whole."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer: bytes
    is_whole: bool

    @cached_property
    def system(self) -> str:
        """The text of the first message."""
        content = json.loads(self.body)["messages"][0]["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    @cached_property
    def figures(self) -> dict[str, int]:
        """What the server says about this request in the last event of its answer that has `timings`."""
        events = [json.loads(line[6:]) for line in self.answer.splitlines() if line.startswith(b"data: {")]
        last: dict[str, Any] = [event for event in events if "timings" in event][-1]
        kept = {name: last["timings"][name] for name in ("prompt_n", "cache_n")}
        return {"prompt_tokens": last["usage"]["prompt_tokens"], **kept}


class Recorder:
    """Listens on a free port while it is entered."""

    def __init__(self, upstream_port: int) -> None:
        self.exchanges: list[Exchange] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(upstream_port, self.exchanges))
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(upstream_port: int, exchanges: list[Exchange]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with closing(http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=ANSWER_S)) as upstream:
                upstream.request("POST", self.path, body, dict(self.headers.items()))
                answer = upstream.getresponse()
                passed, is_whole = self._pass_on(answer)
            exchange = Exchange(self.path, dict(self.headers.items()), body, answer.status, passed, is_whole)
            exchanges.append(exchange)
            self.close_connection = True

        do_GET = do_POST  # noqa: N815

        def _pass_on(self, answer: http.client.HTTPResponse) -> tuple[bytes, bool]:
            self.send_response_only(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Connection", "close")
            self.end_headers()
            passed = b""
            try:
                while block := answer.read1(BLOCK):
                    self.wfile.write(block)
                    passed += block
            except (http.client.HTTPException, OSError):
                return passed, False
            return passed, True

        def log_message(self, *_: object) -> None:
            return

    return Handler
