"""`ls`, `show`, `rm` and `prune` where no proxy runs: on the files themselves."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from proxy.checkpoints.index import Index
from proxy.checkpoints.index_file import read_index
from proxy.checkpoints.inspection import seal_of
from proxy.checkpoints.key import bad_name, final_name, temporary_name
from tests.checkpoints.state_files import KEY, OTHER_KEY, checkpoint, state_file
from tests.commands.typed import Said, Terminal

NOW = time.time()
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Disk:
    """What a proxy has left: an index and its files."""

    home: Path
    terminal: Terminal

    @property
    def slots(self) -> Path:
        return self.home / "slots"

    @property
    def index(self) -> Path:
        return self.home / "index"

    def keep(self, key: str, *, days: float = 0, size: int | None = None) -> Path:
        """A checkpoint, used so many days ago; of another size than is known of it if that is told."""
        path = state_file(self.slots / final_name(key))
        used_at = NOW - days * DAY
        known = checkpoint(key, last_used_at=used_at, created_at=used_at, size_bytes=size or path.stat().st_size)
        index = Index.open(self.index, NOW)
        index.put(replace(known, seal=seal_of(path), verdict="good", uses=3, model_id="/models/tiny.gguf"))
        assert index.close() is None
        return path

    def type(self, *words: object) -> Said:
        command, *rest = words
        where = ("--admin-port", "", "--dir", self.index, "--slot-dir", self.slots)
        return self.terminal.type(command, *where, *rest)

    @property
    def known(self) -> set[str]:
        return {one.key for one in read_index((self.index / "index.json").read_bytes()).records}

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.slots.iterdir()}


@pytest.fixture
def disk(tmp_path: Path, terminal: Terminal) -> Disk:
    (tmp_path / "slots").mkdir()
    return Disk(tmp_path, terminal)


def test_each_state_of_a_file_is_told(disk: Disk) -> None:
    """There, gone, of another size, in no index, put aside, unfinished; the latest used first."""
    disk.keep(KEY, days=1)
    disk.keep(OTHER_KEY, days=2).unlink()
    disk.keep("3" * 16, days=3, size=17)
    state_file(disk.slots / final_name("4" * 16))
    state_file(disk.slots / bad_name("5" * 16, 1))
    state_file(disk.slots / temporary_name("6" * 16, 1, 1))
    listed = disk.type("ls", "--json")
    assert [(KEY, "there"), (OTHER_KEY, "missing"), ("3" * 16, "other size")] == [
        (one["key"], one["disk"]) for one in listed.json[:3]
    ]
    strays = {(one["key"], one["disk"]) for one in listed.json[3:]}
    assert {("4" * 16, "in no index"), ("5" * 16, "put aside"), ("6" * 16, "unfinished")} == strays
    for_people = disk.type("ls")
    assert [0, 0] == [listed.code, for_people.code]
    row = next(line for line in for_people.out.splitlines() if KEY in line)
    assert ["tiny.gguf", "64", "10.5", "kB", "1", "d", "1", "d", "3", "good", "there"] == row.split()[1:]


def test_looking_takes_no_lock_and_leaves_no_trace(disk: Disk) -> None:
    """A proxy that starts at the same moment gets the lock; a damaged index lies as it lay."""
    disk.keep(KEY)
    (disk.index / "lock").unlink()
    (disk.index / "index.json").write_bytes(b"{")
    assert 0 == disk.type("ls").code
    assert {"index.json"} == {path.name for path in disk.index.iterdir()}


@pytest.mark.parametrize("command", [("ls",), ("show", "ab"), ("rm", "ab"), ("prune",)])
def test_without_a_directory_it_says_so_and_makes_none(disk: Disk, command: tuple[str, ...]) -> None:
    """One line that names the setting, exit code 2."""
    said = disk.type(*command)
    assert (2, 1) == (said.code, len(said.err.splitlines()))
    assert f"DIR={disk.index}" in said.err
    assert not disk.index.exists()


def test_a_slot_directory_that_is_not_there_is_named(disk: Disk) -> None:
    """SLOT_DIR, not a traceback."""
    disk.keep(KEY)
    said = disk.terminal.type("ls", "--admin-port", "", "--dir", disk.index, "--slot-dir", disk.home / "no")
    assert (2, True) == (said.code, f"SLOT_DIR={disk.home / 'no'}" in said.err)


def test_a_key_may_be_shortened_as_long_as_it_is_one(disk: Disk) -> None:
    """Its beginning or its file's name; several or none are told with what to do."""
    disk.keep("ab" + "1" * 14)
    disk.keep("ab" + "2" * 14)
    for text in ("ab1", final_name("ab" + "1" * 14)):
        assert "ab" + "1" * 14 == disk.type("show", text, "--json").json["checkpoints"][0]["key"]
    several, none = disk.type("show", "ab"), disk.type("rm", "abc")
    assert [2, 2] == [several.code, none.code]
    assert "beginning of 2 keys: ab11111111111111, ab22222222222222" in several.err
    assert "no checkpoint's key begins with 'abc'" in none.err
    assert 2 == len(disk.files)


def test_show_proves_the_file(disk: Disk) -> None:
    """A byte that was flipped under the same size is seen, and makes the exit code 1; so does a file that is gone."""
    path = disk.keep(KEY)
    whole = disk.type("show", KEY, "--json")
    assert (0, "whole") == (whole.code, whole.json["proof"])
    recorded = seal_of(path).checksum
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    shown = disk.type("show", KEY)
    words = f"damaged: its checksum is {seal_of(path).checksum}, recorded was {recorded}"
    assert (1, ["proof", words]) == (shown.code, shown.out.splitlines()[2].split(maxsplit=1))
    assert "\nlast verified  good" in shown.out
    told = disk.type("show", KEY, "--json")
    assert (1, words) == (told.code, told.json["proof"])
    path.write_bytes(raw[:-1])
    assert "damaged: size (" in disk.type("show", KEY).out
    path.unlink()
    gone = disk.type("show", KEY)
    assert (1, True) == (gone.code, "missing" in gone.out)


def test_rm_deletes_file_and_entry_and_no_other(disk: Disk) -> None:
    """What was put aside of it goes, too."""
    disk.keep(KEY)
    kept = disk.keep(OTHER_KEY)
    state_file(disk.slots / bad_name(KEY, 1))
    (disk.slots / "mine.bin").write_bytes(b"")
    assert 0 == disk.type("rm", KEY[:8]).code
    assert ({OTHER_KEY}, {kept.name, "mine.bin"}) == (disk.known, disk.files)


def test_rm_all_leaves_only_what_is_not_ours(disk: Disk) -> None:
    """And what somebody may be writing; keys and --all together, or neither, are a slip."""
    disk.keep(KEY)
    state_file(disk.slots / final_name("4" * 16))
    unfinished = state_file(disk.slots / temporary_name(KEY, 1, 1))
    (disk.slots / "mine.bin").write_bytes(b"")
    assert [2, 2] == [disk.type("rm", *words).code for words in ((), (KEY, "--all"))]
    assert 4 == len(disk.files)
    said = disk.type("rm", "--all", "--json")
    assert (0, {"4" * 16: "", KEY: ""}) == (said.code, {one["key"]: one["error"] for one in said.json})
    assert (set(), {unfinished.name, "mine.bin"}) == (disk.known, disk.files)


def test_what_another_proxy_holds_is_not_deleted(disk: Disk) -> None:
    """One that runs without admin listener has the lock: exit code 1, the reason, everything as it was."""
    disk.keep(KEY, days=100)
    running = Index.open(disk.index, NOW)
    try:
        removed, pruned = disk.type("rm", KEY), disk.type("prune", "--keep-recent", "0")
    finally:
        running.close()
    assert [1, 1] == [removed.code, pruned.code]
    assert "another proxy holds DIR" in removed.out
    assert "another proxy holds DIR" in pruned.out
    assert ({KEY}, 1) == (disk.known, len(disk.files))


def test_prune_does_what_the_limits_say_and_tells_before(disk: Disk) -> None:
    """`--dry-run` names the same files and deletes none."""
    old, new = disk.keep(KEY, days=40), disk.keep(OTHER_KEY, days=1)
    broken = state_file(disk.slots / temporary_name("6" * 16, 2**22 - 1, 1))
    limits = ("--keep-recent", "1", "--ttl-days", "30")
    told = disk.type("prune", "--dry-run", *limits, "--json").json
    assert {old.name, broken.name} == set(told["files"])
    assert 3 == len(disk.files)
    done = disk.type("prune", *limits)
    assert (0, {new.name}, {OTHER_KEY}) == (done.code, disk.files, disk.known)
    assert "2 file(s)" in done.out
    assert "0 file(s)" in disk.type("prune", *limits).out


def test_prune_without_slot_directory_says_what_is_missing(disk: Disk) -> None:
    """There is nothing that it could look at."""
    disk.keep(KEY)
    said = disk.terminal.type("prune", "--admin-port", "", "--dir", disk.index)
    assert (1, True) == (said.code, "SLOT_DIR is not set" in said.out)


def test_a_strange_name_sets_up_no_terminal(disk: Disk) -> None:
    """A model's name is somebody's text: control characters stay out."""
    disk.keep(KEY)
    index = Index.open(disk.index, NOW)
    index.put(replace(index.records[KEY], model_id="/m/\x1b[31mred"))
    assert index.close() is None
    assert "\x1b" not in disk.type("ls").out + disk.type("show", KEY).out


def test_an_index_of_a_newer_version_is_told(disk: Disk) -> None:
    """Not read as if it were empty."""
    disk.index.mkdir()
    (disk.index / "index.json").write_bytes(b'{"schema": 999, "checkpoints": {}}')
    said = disk.type("ls")
    assert (2, True) == (said.code, "newer pi-prefix-cache" in said.err)


def test_slips_in_settings_are_told_and_stand_in_no_way(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr: stdout is the answer's."""
    disk.keep(KEY)
    monkeypatch.setenv("PI_PREFIX_CACHE_TTL_DAYZ", "3")
    said = disk.type("ls", "--json")
    assert (0, 1, True) == (said.code, len(said.json), "PI_PREFIX_CACHE_TTL_DAYS?" in said.err)
    assert os.environ["PI_PREFIX_CACHE_TTL_DAYZ"]
