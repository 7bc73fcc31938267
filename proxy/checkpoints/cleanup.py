"""Which files of ours may go, and whether there is room for one more.

Pure decisions over what ``slot_directory.scan`` saw and what the index knows. The rules:

1. Only our own names, only regular files with a single link. A state file and its companion go together
   or stay together.
2. Never a current checkpoint, never one in use, whatever the limits say.
3. A temporary file goes when the process that asked for it is gone, or when it is older than any save.
4. A file put aside goes when it has been aside for the time to live.
5. A checkpoint stays if it was used within the time to live or is among the most recently used few.
6. If what then stays is over the size limit: first what was put aside, then the checkpoints, the oldest
   first.

A checkpoint that no index entry names has been used when it was last written.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from proxy.checkpoints.key import FileKind, OwnName, companion_name, main_name, parse_name

DAY_S = 86_400.0
TEMPORARY_LIFETIME_S = 3_600.0  # far longer than a save may take
MIN_FREE_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class FileSeen:
    """One directory entry as ``lstat`` shows it."""

    name: str
    size_bytes: int
    mtime: float
    inode: int = 0
    links: int = 1
    is_regular: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows us to keep."""

    ttl_days: float = 30.0
    keep_recent: int = 3
    max_bytes: int = 0  # 0: no limit


@dataclass(frozen=True, slots=True)
class _Group:
    """A state file and its companion, or the one of them that is there."""

    own: OwnName
    files: tuple[FileSeen, ...]
    used_at: float
    is_protected: bool

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files if file.is_regular)

    @property
    def is_checkpoint(self) -> bool:
        return self.own.kind is FileKind.FINAL and not self.own.is_companion


def refusal(
    *, is_persisting: bool, has_slot_dir: bool, is_wanted: bool, is_index_trusted: bool, is_owner: bool
) -> str | None:
    """Why there is no clean-up in this run; None where there is one."""
    reasons = {
        "persistence_off": is_persisting,
        "slot_dir_unset": has_slot_dir,
        "cleanup_off": is_wanted,
        "index_not_trusted": is_index_trusted,
        "directory_of_another_proxy": is_owner,
    }
    return next((reason for reason, is_fine in reasons.items() if not is_fine), None)


def plan_cleanup(
    files: Sequence[FileSeen],
    last_used: Mapping[str, float],
    *,
    now: float,
    limits: Limits,
    current: Set[str] = frozenset(),
    in_use: Set[str] = frozenset(),
    live_pids: Collection[int] = (),
) -> list[FileSeen]:
    """The files to delete, companions before what they belong to.

    ``last_used`` is when each checkpoint of the index was used last; ``current`` and ``in_use`` are keys.
    """
    groups = _grouped(files, last_used, current | in_use)
    aged = _aged(groups, now, limits, live_pids)
    going = set(aged)
    over = _over_limit([group for group in groups if group not in going], limits.max_bytes)
    return [file for group in (*aged, *over) for file in sorted(group.files, key=_companions_first)]


def keys_without_file(files: Iterable[FileSeen], keys: Iterable[str]) -> list[str]:
    """The index entries whose checkpoint is gone from the directory."""
    names = (parse_name(file.name) for file in files)
    present = {own.key for own in names if own and own.kind is FileKind.FINAL and not own.is_companion}
    return [key for key in keys if key not in present]


def room_for(*, free_bytes: int, total_bytes: int, expected_bytes: int, max_bytes: int) -> str | None:
    """Why a checkpoint of this size is not saved; None where there is room for it."""
    if 0 < max_bytes < expected_bytes:
        return "max_gb_below_one_checkpoint"  # else it would be saved, cleaned away and saved again
    if free_bytes < 2 * expected_bytes:
        return "disk_almost_full"
    return "disk_below_a_tenth" if free_bytes - expected_bytes < MIN_FREE_SHARE * total_bytes else None


def _grouped(files: Sequence[FileSeen], last_used: Mapping[str, float], kept: Set[str]) -> list[_Group]:
    by_main: dict[str, list[FileSeen]] = {}
    for file in files:
        if parse_name(file.name) is not None:
            by_main.setdefault(main_name(file.name), []).append(file)
    return [_group(main, members, last_used, kept) for main, members in sorted(by_main.items())]


def _group(main: str, members: list[FileSeen], last_used: Mapping[str, float], kept: Set[str]) -> _Group:
    own = parse_name(main)
    assert own is not None  # noqa: S101 — a companion's name is one of ours only if the main name is
    has_main = any(file.name == main for file in members)
    written_at = max(file.mtime for file in members)
    used_at = last_used.get(own.key, written_at) if own.kind is FileKind.FINAL and has_main else written_at
    is_ours = all(file.is_regular and file.links == 1 for file in members)
    is_kept = own.key in kept and own.kind is not FileKind.BAD
    own = own if has_main else replace(own, is_companion=True)
    return _Group(own, tuple(members), used_at, is_protected=is_kept or not is_ours)


def _aged(groups: list[_Group], now: float, limits: Limits, live_pids: Collection[int]) -> list[_Group]:
    checkpoints = sorted((group for group in groups if group.is_checkpoint), key=_age_order, reverse=True)
    recent = set(checkpoints[: limits.keep_recent])
    oldest_kept = now - limits.ttl_days * DAY_S

    def has_aged(group: _Group) -> bool:
        match group.own.kind:
            case FileKind.TEMPORARY:
                return group.own.pid not in live_pids or group.used_at < now - TEMPORARY_LIFETIME_S
            case FileKind.BAD:
                return (group.own.bad_at if group.own.bad_at <= now else group.used_at) < oldest_kept
            case FileKind.FINAL:
                return group.used_at < oldest_kept and group not in recent

    return [group for group in groups if not group.is_protected and has_aged(group)]


def _over_limit(groups: list[_Group], max_bytes: int) -> list[_Group]:
    if max_bytes <= 0:
        return []
    total = sum(group.size_bytes for group in groups)
    going = []
    for group in sorted(groups, key=_age_order):
        if total <= max_bytes:
            break
        if not group.is_protected and group.own.kind is not FileKind.TEMPORARY:
            going.append(group)
            total -= group.size_bytes
    return going


def _age_order(group: _Group) -> tuple[bool, float, str]:
    """Oldest first, and what can't be restored before what can."""
    return group.is_checkpoint, group.used_at, group.own.key


def _companions_first(file: FileSeen) -> bool:
    return file.name != companion_name(main_name(file.name))
