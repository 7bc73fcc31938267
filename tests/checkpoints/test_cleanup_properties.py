"""Whatever the directory and the clock, clean-up keeps what must stay and fits the limits."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.checkpoints.cleanup import (
    DAY_S,
    TEMPORARY_LIFETIME_S,
    FileSeen,
    Limits,
    plan_cleanup,
)
from proxy.checkpoints.key import FileKind, bad_name, companion_name, final_name, main_name, parse_name, temporary_name

KEYS = [f"{number:016x}" for number in range(8)]


# Few days and small sizes, so that limits are met exactly, and missed by one.
times = st.integers(0, 40).map(lambda days: days * DAY_S)


main_names = st.one_of(
    st.sampled_from(KEYS).map(final_name),
    st.builds(temporary_name, st.sampled_from(KEYS), st.integers(0, 5), st.integers(0, 3)),
    st.builds(bad_name, st.sampled_from(KEYS), times.map(int)),
)


names = main_names | main_names.map(companion_name) | st.sampled_from(["theirs.bin", "index.json", "pi-prefix-x.bin"])


seen_files = st.builds(
    FileSeen,
    names,
    st.integers(0, 5),
    times,
    links=st.sampled_from([1, 1, 1, 2]),
    is_regular=st.sampled_from([True] * 5 + [False]),
)


directories = st.lists(seen_files, max_size=20, unique_by=lambda file: file.name)


situations = st.fixed_dictionaries(
    {
        "now": times,
        "limits": st.builds(Limits, st.integers(0, 20).map(float), st.integers(0, 4), st.integers(0, 15)),
        "current": st.sets(st.sampled_from(KEYS), max_size=2),
        "in_use": st.sets(st.sampled_from(KEYS), max_size=2),
        "live_pids": st.sets(st.integers(0, 5)),
    }
)


uses = st.dictionaries(st.sampled_from(KEYS), times)


@given(directories, uses, situations)
def test_never_anything_that_must_stay(files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]) -> None:
    """No foreign name, no link, nothing current, in use or just being saved, each file once."""
    gone = plan_cleanup(files, last_used, **how)
    assert len(set(gone)) == len(gone)
    for file in gone:
        own = parse_name(file.name)
        assert own is not None
        assert file in files
        assert (file.is_regular, file.links) == (True, 1)
        assert own.kind is FileKind.BAD or own.key not in how["current"] | how["in_use"]
        written = max(other.mtime for other in files if main_name(other.name) == main_name(file.name))
        is_young = written >= how["now"] - TEMPORARY_LIFETIME_S
        assert not (own.kind is FileKind.TEMPORARY and own.pid in how["live_pids"] and is_young)


@given(directories, uses, situations)
def test_survivors_fit_the_limit_or_are_protected(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """When it is still too much, nothing is left that might have gone."""
    gone = set(plan_cleanup(files, last_used, **how))
    left = [file for file in files if file not in gone and parse_name(file.name)]
    limit = how["limits"].max_bytes
    total = sum(file.size_bytes for file in left if file.is_regular)
    assert limit == 0 or total <= limit or all(_must_stay(file, left, how) for file in left)


def _must_stay(file: FileSeen, left: list[FileSeen], how: dict[str, Any]) -> bool:
    own = parse_name(file.name)
    assert own is not None
    pair = [other for other in left if main_name(other.name) == main_name(file.name)]
    is_kept = own.kind is not FileKind.BAD and own.key in how["current"] | how["in_use"]
    is_saving = own.kind is FileKind.TEMPORARY and own.pid in how["live_pids"]
    return is_kept or is_saving or any(other.links != 1 or not other.is_regular for other in pair)


@given(directories, uses, situations)
def test_a_second_clean_up_finds_nothing(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """What was decided once is decided for good."""
    gone = set(plan_cleanup(files, last_used, **how))
    assert plan_cleanup([file for file in files if file not in gone], last_used, **how) == []


@given(directories, uses, situations)
def test_pairs_go_together(files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]) -> None:
    """A state file never goes without its companion, nor the other way round."""
    gone = {file.name for file in plan_cleanup(files, last_used, **how)}
    left = {file.name for file in files} - gone
    assert {main_name(name) for name in gone}.isdisjoint(main_name(name) for name in left)


@given(directories, uses, situations)
def test_the_order_of_the_directory_does_not_matter(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """The same files in another order give the same plan."""
    assert plan_cleanup(files, last_used, **how) == plan_cleanup(files[::-1], last_used, **how)


@given(directories, uses, situations)
def test_what_was_used_in_time_goes_only_for_the_size_limit(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """Without a size limit no checkpoint used within the time to live goes."""
    limits = Limits(how["limits"].ttl_days, how["limits"].keep_recent)
    oldest_kept = how["now"] - limits.ttl_days * DAY_S
    for file in plan_cleanup(files, last_used, **(how | {"limits": limits})):
        own = parse_name(file.name)
        assert own is not None
        if own.kind is FileKind.FINAL and not own.is_companion and own.key in last_used:
            assert last_used[own.key] < oldest_kept


@given(directories, uses, situations)
def test_of_the_old_the_most_recent_few_stay_and_no_more(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """Without a size limit each that goes is older than as many as are kept; of what may go no more stay than those."""
    limits = Limits(how["limits"].ttl_days, how["limits"].keep_recent)
    gone = plan_cleanup(files, last_used, **(how | {"limits": limits}))
    used = {file.name: _used_at(file, files, last_used) for file in files if _is_checkpoint(file)}
    left = used.keys() - {file.name for file in gone}
    for file in gone:
        if file.name in used:
            assert limits.keep_recent <= sum(used[name] >= used[file.name] for name in left)
    old = [file for file in files if file.name in left and used[file.name] < how["now"] - limits.ttl_days * DAY_S]
    assert limits.keep_recent >= sum(not _must_stay(file, files, how) for file in old)


@given(directories, uses, situations)
def test_over_the_size_limit_the_oldest_go_first(
    files: list[FileSeen], last_used: dict[str, float], how: dict[str, Any]
) -> None:
    """No checkpoint goes that was used later than one that stays though it might go; the useless goes before all."""
    limits = Limits(1000.0, 0, how["limits"].max_bytes)
    gone = plan_cleanup(files, last_used, **(how | {"limits": limits}))
    free = [file for file in files if parse_name(file.name) and file not in gone and not _must_stay(file, files, how)]
    for file in filter(_is_checkpoint, gone):
        assert all(_is_checkpoint(other) or _is_part(other, files) for other in free)
        used = _used_at(file, files, last_used)
        assert all(used <= _used_at(other, files, last_used) for other in filter(_is_checkpoint, free))


def _is_part(file: FileSeen, files: list[FileSeen]) -> bool:
    """A companion beside its state file, or a file being written."""
    own = parse_name(file.name)
    has_main = main_name(file.name) != file.name and any(other.name == main_name(file.name) for other in files)
    return own is not None and (own.kind is FileKind.TEMPORARY or (own.kind is FileKind.FINAL and has_main))


def _is_checkpoint(file: FileSeen) -> bool:
    own = parse_name(file.name)
    return own is not None and own.kind is FileKind.FINAL and not own.is_companion


def _used_at(file: FileSeen, files: list[FileSeen], last_used: dict[str, float]) -> float:
    own = parse_name(file.name)
    assert own is not None
    written = max(other.mtime for other in files if main_name(other.name) == file.name)
    return last_used.get(own.key, written)
