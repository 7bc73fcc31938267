"""What clean-up lets go: enough to fit the limits, and never what must stay."""

from collections.abc import Sequence
from typing import Any

import pytest

from proxy.checkpoints.cleanup import (
    DAY_S,
    TEMPORARY_LIFETIME_S,
    FileSeen,
    Limits,
    keys_without_file,
    plan_cleanup,
    refusal,
    room_for,
)
from proxy.checkpoints.key import bad_name, companion_name, final_name, temporary_name

NOW = 1_000 * DAY_S
KEYS = [f"{number:016x}" for number in range(8)]
NOTHING_KEPT = Limits(ttl_days=0, keep_recent=0)


def seen(name: str, *, days: float = 0.0, size_bytes: int = 100, **other: Any) -> FileSeen:
    return FileSeen(name, size_bytes, NOW - days * DAY_S, **other)


def checkpoints(*days: float, size_bytes: int = 100) -> list[FileSeen]:
    return [seen(final_name(KEYS[n]), days=age, size_bytes=size_bytes) for n, age in enumerate(days)]


def going(files: Sequence[FileSeen], last_used: dict[str, float] | None = None, **how: Any) -> list[str]:
    return [file.name for file in plan_cleanup(files, last_used or {}, now=NOW, **({"limits": Limits()} | how))]


def test_the_recently_used_and_the_most_recent_few_stay() -> None:
    """Used within 30 days stays, however many; of the older ones only what the three most recent include."""
    assert going(checkpoints(1, 2, 3, 29, 31, 40)) == [final_name(KEYS[4]), final_name(KEYS[5])]
    assert going(checkpoints(100, 200, 300, 400)) == [final_name(KEYS[3])]


def test_the_index_knows_better_than_the_file_when_it_was_used() -> None:
    """A file written long ago and used yesterday is a recent one."""
    files = checkpoints(1, 2, 3, 400)
    assert going(files, {KEYS[3]: NOW - DAY_S}) == []
    assert going(files) == [final_name(KEYS[3])]


def test_a_hundred_fingerprints_with_a_limit_of_three_files() -> None:
    """With room for three files the three most recently used remain."""
    files = [seen(final_name(f"{n:016x}"), days=n / 100, size_bytes=10) for n in range(100)]
    assert len(going(files, limits=Limits(max_bytes=30))) == 97
    assert files[0].name not in going(files, limits=Limits(max_bytes=30))


def _protecting(protection: str) -> dict[str, Any]:
    return {protection: {KEYS[0]}}


@pytest.mark.parametrize("protection", ["current", "in_use"])
def test_what_is_current_or_in_use_stays_over_every_limit(protection: str) -> None:
    """No limit makes a file go that a restore or a save is at."""
    files = [*checkpoints(400), seen(temporary_name(KEYS[0], 1, 1), days=400)]
    limits = Limits(ttl_days=0, keep_recent=0, max_bytes=1)
    assert len(going(files, limits=limits)) == 2
    assert going(files, limits=limits, **_protecting(protection)) == []


def test_a_companion_goes_with_its_state_file() -> None:
    """Both go, the companion first, so that no half of a pair is left that looks like more than it is."""
    name = final_name(KEYS[0])
    files = [seen(name, days=400), seen(companion_name(name), days=400)]
    assert going(files, limits=NOTHING_KEPT) == [companion_name(name), name]


def test_a_companion_counts_in_the_size() -> None:
    """The limit is about what lies on the disk, companions and files put aside included."""
    name = final_name(KEYS[0])
    files = [seen(name), seen(companion_name(name)), seen(bad_name(KEYS[1], int(NOW)))]
    assert going(files, limits=Limits(max_bytes=300)) == []
    assert going(files, limits=Limits(max_bytes=299)) == [bad_name(KEYS[1], int(NOW))]


def test_what_was_put_aside_goes_before_a_good_checkpoint() -> None:
    """Under pressure the useless goes first, though it is newer."""
    files = [*checkpoints(5), seen(bad_name(KEYS[1], int(NOW - 60)))]
    assert going(files, limits=Limits(max_bytes=100)) == [bad_name(KEYS[1], int(NOW - 60))]


def test_a_file_put_aside_goes_after_its_time() -> None:
    """It ages from when it was put aside, not from when it was saved."""
    aside_at = [int(NOW - 31 * DAY_S), int(NOW - 29 * DAY_S)]
    files = [seen(bad_name(KEYS[n], at), days=300) for n, at in enumerate(aside_at)]
    assert going(files) == [files[0].name]


def test_a_lone_companion_ages_like_a_file_and_takes_nobodys_place() -> None:
    """A companion without its state file doesn't count among the most recent checkpoints."""
    files = [seen(companion_name(final_name(KEYS[7])), days=31), *checkpoints(100, 200, 300)]
    assert going(files) == [companion_name(final_name(KEYS[7]))]


def test_fragments_of_dead_processes_are_swept() -> None:
    """What a killed proxy left goes at the next start; a living one's save goes on, but not for ever."""
    hours = TEMPORARY_LIFETIME_S / DAY_S
    files = [
        seen(temporary_name(KEYS[0], 10, 1)),
        seen(temporary_name(KEYS[1], 20, 1)),
        seen(temporary_name(KEYS[2], 20, 2), days=2 * hours),
    ]
    assert going(files, live_pids={20}) == [files[0].name, files[2].name]


def test_a_save_in_progress_does_not_give_way_to_the_size_limit() -> None:
    """What another proxy's server is writing stays, however full it is; it isn't a checkpoint yet."""
    files = [*checkpoints(5), seen(temporary_name(KEYS[1], 20, 1), days=0.01)]
    assert going(files, limits=Limits(max_bytes=150), live_pids={20}) == [files[0].name]


def test_a_file_put_aside_in_the_future_ages_from_when_it_was_written() -> None:
    """A clock that was wrong when it was put aside does not keep it for ever."""
    files = [seen(bad_name(KEYS[0], int(NOW + 400 * DAY_S)), days=31)]
    assert going(files) == [files[0].name]


@pytest.mark.parametrize("strange", [{"links": 2}, {"is_regular": False}])
def test_links_are_left_alone(strange: dict[str, Any]) -> None:
    """A symlink or a hard link under our name is somebody's doing, and so is what belongs to it."""
    name = final_name(KEYS[0])
    files = [seen(name, days=400, **strange), seen(companion_name(name), days=400)]
    assert going(files, limits=Limits(0, 0, 1)) == []


def test_a_clock_that_went_back_deletes_nothing() -> None:
    """Files from the future are recent."""
    assert going(checkpoints(-1, -400, -5, -6, -7)) == []


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("is_persisting", "persistence_off"),
        ("has_slot_dir", "slot_dir_unset"),
        ("is_wanted", "cleanup_off"),
        ("is_index_trusted", "index_not_trusted"),
        ("is_owner", "directory_of_another_proxy"),
    ],
)
def test_no_clean_up_without_every_condition(missing: str, reason: str) -> None:
    """Each condition alone is enough to delete nothing."""
    conditions = dict.fromkeys(["is_persisting", "has_slot_dir", "is_wanted", "is_index_trusted", "is_owner"], True)
    assert refusal(**conditions) is None
    assert reason == refusal(**(conditions | {missing: False}))


def test_entries_whose_file_is_gone_are_told() -> None:
    """Only a state file under its final name keeps an entry."""
    files = [seen(final_name(KEYS[0])), seen(bad_name(KEYS[1], 5)), seen(companion_name(final_name(KEYS[2])))]
    assert keys_without_file(files, KEYS[:3]) == KEYS[1:3]


@pytest.mark.parametrize(
    ("free", "expected", "limit", "reason"),
    [
        (1000, 100, 0, None),
        (199, 50, 0, None),
        (1000, 100, 100, None),
        (1000, 100, 99, "max_gb_below_one_checkpoint"),
        (199, 100, 0, "disk_almost_full"),
        (149, 50, 0, "disk_below_a_tenth"),
        (150, 50, 0, None),
        (0, 0, 0, "disk_below_a_tenth"),
    ],
)
def test_room_for_one_more(free: int, expected: int, limit: int, reason: str | None) -> None:
    """On a disk of 1000: never under a tenth free after the save, never with less than twice the size free."""
    assert reason == room_for(free_bytes=free, total_bytes=1000, expected_bytes=expected, max_bytes=limit)
