"""What the soak decides: whether something has grown, whether an answer is as it should be, what a log must not say."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from bench.soak.growth import SLACK_MB, Rest, growth
from bench.soak.tally import Tally, flaw
from bench.soak.watch import added_up, counted, loud
from tests.serving.running import Answer

MINUTES = 55
FULL = 10_000
Shape = Callable[[int, Rest], Rest]


def series(shape: Shape, requests_a_minute: int = 600) -> list[Rest]:
    """An hour, a look a minute: what memory does when the history fills is in it already."""
    steady = [Rest(at * 60.0, at * requests_a_minute, 66.0, 16, 4, 7) for at in range(1, MINUTES + 1)]
    filled = [replace(rest, rss_mb=rest.rss_mb + min(FULL, rest.requests) * 0.0015) for rest in steady]
    return [shape(at, rest) for at, rest in enumerate(filled)]


def grew(rests: Sequence[Rest]) -> list[str]:
    return [one.what for one in growth(rests) if one.is_too_much]


STEADY: dict[str, Shape] = {
    "as ever": lambda _, rest: rest,
    "a moment that was not quiet": lambda at, rest: replace(rest, tasks=9, fds=22) if at in (5, 30, 50) else rest,
    "memory that goes up and down": lambda at, rest: replace(rest, rss_mb=rest.rss_mb + at * 7 % 9),
    "a pool that gets its threads late": lambda at, rest: replace(rest, threads=7 + (at > 40) * 5),
    "shrinks": lambda at, rest: replace(rest, rss_mb=rest.rss_mb - at * 0.1, fds=16 - (at > 30)),
}
GROWING: dict[str, tuple[Shape, str]] = {
    "a descriptor, once": (lambda at, rest: replace(rest, fds=16 + (at > 30)), "descriptors"),
    "a task an hour": (lambda at, rest: replace(rest, tasks=4 + at // 35), "tasks"),
    "only at the very end": (lambda at, rest: replace(rest, tasks=4 + (at == MINUTES - 1)), "tasks"),
    "a kilobyte a request": (lambda _, rest: replace(rest, rss_mb=rest.rss_mb + rest.requests / 1000), "memory"),
    "three hundred bytes a request, for long": (
        lambda at, rest: replace(rest, rss_mb=rest.rss_mb + SLACK_MB * 1.5 * at / MINUTES, requests=FULL + at),
        "memory",
    ),
    "a thread a minute": (lambda at, rest: replace(rest, threads=7 + at), "threads"),
}


@pytest.mark.parametrize("shape", STEADY.values(), ids=STEADY.keys())
def test_what_stays_about_the_same_has_not_grown(shape: Shape) -> None:
    """Nor has what fills to its limit, or single moments that were different."""
    assert [] == grew(series(shape))


@pytest.mark.parametrize(("shape", "what"), GROWING.values(), ids=GROWING.keys())
def test_what_leaks_has_grown(shape: Shape, what: str) -> None:
    """However slowly; and nothing else has."""
    assert [what] == grew(series(shape))


def test_two_moments_are_enough_to_see_a_leak() -> None:
    """Of a short run too; one moment says nothing."""
    first, *_, last = series(lambda _, rest: rest, requests_a_minute=10)
    assert [] == grew([first, last])
    assert ["descriptors"] == grew([first, replace(last, fds=17)])
    assert ["memory"] == grew([first, replace(last, rss_mb=first.rss_mb + 12)])
    with pytest.raises(ValueError, match="beginning and an end"):
        growth([first])


def test_words_say_what_grew_and_how_far() -> None:
    first, *_, last = series(lambda _, rest: rest)
    told = next(one for one in growth([first, replace(last, fds=19)]) if one.what == "descriptors")
    assert "descriptors GREW: 16 → 19 (may grow by 0)" == str(told)


GOOD = Answer(200, b'data: {"choices": []}\n\ndata: [DONE]\n\n', 0.1, "ABC", {"prompt_n": 1, "cache_n": 2})
WHOLE = replace(GOOD, data=b'{"choices": []}')


@pytest.mark.parametrize(
    ("answer", "is_streamed", "words"),
    [
        (GOOD, True, ""),
        (WHOLE, False, ""),
        (replace(GOOD, status=502), True, "502"),
        (replace(GOOD, data=b"data: {}\n\n"), True, "no end"),
        (replace(WHOLE, data=b'{"choices": ['), False, "no JSON"),
        (replace(GOOD, timings={"prompt_n": 1}), True, "no timings"),
        (replace(GOOD, text=""), True, "no text"),
        (replace(GOOD, headers_s=46.0), True, "late"),
    ],
)
def test_what_an_answer_lacks_is_said(answer: Answer, is_streamed: bool, words: str) -> None:
    assert words == flaw(answer, is_streamed=is_streamed).partition(":")[0]


@pytest.mark.parametrize("is_excused", [True, False])
def test_a_spoilt_answer_needs_a_fault_for_an_excuse(is_excused: bool) -> None:
    """Without one it is wrong; with one it is counted."""
    tally = Tally(lambda *_: is_excused)
    tally.note("chat", 0.0, "")
    tally.note("chat", 0.0, "502: no")
    tally.judge(all_of_them=True)
    assert (2, 1) == (tally.asked["chat"], tally.fine["chat"])
    assert (int(is_excused), int(not is_excused)) == (tally.excused["502"], len(tally.wrong))


def test_what_was_seen_just_now_is_judged_later() -> None:
    """Only then it is known whether the server had died."""
    tally = Tally(lambda *_: False)
    tally.note("chat", 0.0, "502: no")
    tally.judge()
    assert ([], 1) == (tally.wrong, len(tally.suspects))


def test_a_log_may_warn_but_not_err() -> None:
    """Nor hold anything that is no line of ours, a traceback say."""
    quiet = b'{"event":"trouble","level":"warning"}\n{"event":"request","level":"info"}\n'
    assert [] == list(loud(quiet))
    assert 1 == len(list(loud(quiet + b'{"event":"bug","level":"error"}\n')))
    assert 2 == len(list(loud(quiet + b"Traceback (most recent call last):\n  File\n")))


def test_counts_are_told_with_their_labels() -> None:
    """Those that are not zero, and no gauge or histogram."""
    text = (
        'pi_prefix_cache_requests_total{outcome="cut",source="hit"} 2.0\n'
        'pi_prefix_cache_restores_total{outcome="failed"} 0.0\n'
        "pi_prefix_cache_checkpoints_deleted_total 3.0\npi_prefix_cache_tasks 4.0\n"
    )
    assert {"requests cut hit": 2, "checkpoints deleted": 3} == counted(text)


def test_metrics_of_one_name_are_added_up() -> None:
    """Others' names and comments apart."""
    text = (
        "# HELP pi_prefix_cache_tasks Tasks.\npi_prefix_cache_tasks 4.0\npython_x 1\n"
        'pi_prefix_cache_requests_total{outcome="cut",source="hit"} 2.0\n'
        'pi_prefix_cache_requests_total{outcome="answered",source="none"} 3.0\n'
    )
    assert {"tasks": 4.0, "requests_total": 5.0} == added_up(text)
