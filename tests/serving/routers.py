"""A llama-server that is a router of several models, each with a process of its own."""

from pathlib import Path
from typing import Any

from proxy.demo.models import Kind, model_path
from proxy.demo.servers import LlamaServer, ServerBinary
from tests.serving.running import ask_server


class Router(LlamaServer):
    """Offers the models of a directory, loaded when they are first asked for."""

    def __init__(self, home: Path, models: dict[str, Kind], *flags: str, binary: ServerBinary) -> None:
        self.directory, self.slots = home / "models", home / "slots"
        self.directory.mkdir()
        self.slots.mkdir()
        for name, kind in models.items():
            (self.directory / f"{name}.gguf").symlink_to(model_path(kind))
        super().__init__(home, *flags, binary=binary)

    def command(self, *more_flags: str) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--models-dir", str(self.directory)]
        kept = ["--slot-save-path", str(self.slots), "-c", str(self.ctx), "-t", "2"]
        return [str(self.binary.path), *where, *kept, *self.binary.quiet_flags, *self.flags, *more_flags]

    async def loaded(self) -> set[str]:
        """Which models are in memory."""
        told: dict[str, Any] = await ask_server(self, "/v1/models")
        return {entry["id"] for entry in told["data"] if entry["status"]["value"] == "loaded"}
