"""Server and proxy as two users who share a group: each may read and replace the other's files, nobody else any."""

import asyncio
import os
import shutil
import stat
from pathlib import Path

from proxy.demo.models import model_path
from proxy.demo.servers import LlamaServer, ServerBinary
from proxy.demo.sessions import session
from tests.packaging.files import LLAMA_UNIT, as_user, unit
from tests.packaging.served import OURS, Served
from tests.serving.running import ask, talking

SERVER, PROXY, GROUP = 20001, 20002, 20003


def _script(path: Path, umask: str, *command: str | Path) -> Path:
    """A program that runs another with a unit's umask."""
    path.write_text(f'#!/bin/sh\numask {umask}\nexec {" ".join(map(str, command))} "$@"\n')
    path.chmod(0o755)
    return path


def _directory(path: Path, mode: str, uid: int, gid: int) -> Path:
    path.mkdir()
    if os.geteuid() == 0:
        shutil.chown(path, uid, gid)
    path.chmod(int(mode, 8))
    return path


async def test_each_may_replace_the_others_files(llama_binary: ServerBinary, tmp_path: Path) -> None:
    """With the units' owner, group, mode and umask: saved and named by one, restored by the other, after restarts."""
    llama = unit(LLAMA_UNIT)
    umask, mode = llama["UMask"][0], llama["StateDirectoryMode"][0]
    slots = _directory(tmp_path / "slots", mode, SERVER, GROUP)
    _directory(tmp_path / "index", "700", PROXY, PROXY)
    server_program = _script(tmp_path / "server", umask, *as_user(SERVER, GROUP), llama_binary.path)
    proxy_program = _script(tmp_path / "proxy", umask, *as_user(PROXY, PROXY, GROUP), *OURS)
    binary = ServerBinary(server_program, llama_binary.environment)
    flags = ("--slot-save-path", f"{slots}/")
    with LlamaServer(model_path("dense"), *flags, binary=binary) as server:
        for number, event in enumerate(("saved", "restored")):
            program = [str(proxy_program)]
            with Served(server.base_url, tmp_path, "--persist", "--slot-dir", str(slots), program=program) as served:
                served.until("probed")
                if event == "restored":
                    await asyncio.to_thread(served.until, event)
                async with talking() as client:
                    body = session(f"/projects/{number}", prefix_tokens=600, max_tokens=4)
                    assert 200 == (await ask(client, served.base_url, body)).status
                if event == "saved":
                    await asyncio.to_thread(served.until, event)
                served.tell()
                assert 0 == await asyncio.to_thread(served.ended)
            server.restart()
    (checkpoint,) = slots.glob("pi-prefix-*.bin")
    told = checkpoint.stat()
    assert "-rw-rw----" == stat.filemode(told.st_mode)
    assert slots.stat().st_gid == told.st_gid
    assert [] == served.said("text")
    assert [] == served.said("unfit")
