"""A ticket: the watcher of one answer, settled exactly once."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.serving.history import outcome
from proxy.serving.ticket import Ticket
from proxy.serving.visit import Visit

NOBODY = Visit(None, None, "not_json", may_prepare=False, client="unknown", auth={})
JSON = CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json"}))
ANSWER = orjson.dumps({"timings": {"prompt_n": 3, "cache_n": 40, "predicted_n": 2, "prompt_ms": 1.5}})


class Events:
    """What the engine is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.figures_when_settled: object = None

    def began(self, ticket: Ticket) -> None:
        self.told.append("began")

    def settled(self, ticket: Ticket) -> None:
        self.told.append("settled")
        self.figures_when_settled = ticket.figures


def make() -> tuple[Ticket, Events]:
    events = Events()
    return Ticket(1, NOBODY, events.began, events.settled, patience_s=25.0), events


def test_an_answer_is_read_before_its_ticket_is_settled() -> None:
    """The engine finds the figures there."""
    ticket, events = make()
    ticket.began(200, JSON)
    ticket.passed(ANSWER[:20])
    ticket.passed(ANSWER[20:])
    ticket.ended(complete=True)
    assert ["began", "settled"] == events.told
    assert ticket.figures is not None
    assert ticket.figures == events.figures_when_settled
    assert (3, 40, True, 200) == (ticket.figures.prompt_n, ticket.figures.cache_n, ticket.is_whole, ticket.status)


@pytest.mark.parametrize("cut", [0, 10])
def test_an_answer_that_was_cut_is_not_whole(cut: int) -> None:
    """It tells nothing, and is settled all the same."""
    ticket, events = make()
    ticket.began(200, JSON)
    ticket.passed(ANSWER[:cut])
    ticket.ended(complete=False)
    assert (False, None) == (ticket.is_whole, ticket.figures)
    assert ["began", "settled"] == events.told


def test_a_request_that_never_reached_the_server_is_settled() -> None:
    """Cancelled in the queue."""
    ticket, events = make()
    ticket.settle()
    assert (["settled"], False, None) == (events.told, ticket.has_begun, ticket.figures)


@pytest.mark.parametrize(
    ("event", "has_failed"),
    [
        (b'data: {"error": {"message": "x"}}\n\n', True),
        (b'error: {"code": 500}\n\n', True),
        (b'data: {"choices": []}\n\n', False),
    ],
)
def test_an_error_in_the_answer_is_told(event: bytes, has_failed: bool) -> None:
    """An answer of status 200 can still end in one."""
    ticket, _ = make()
    ticket.began(200, CIMultiDictProxy(CIMultiDict({"Content-Type": "text/event-stream"})))
    ticket.passed(event)
    ticket.ended(complete=True)
    assert has_failed is ticket.failed_with_error


@pytest.mark.parametrize(
    ("said", "is_whole"),
    [
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', True),
        (b'data: {"choices": []}\r\n\r\ndata: [DONE]\r\n', True),
        (b'data: {"choices": []}\n\ndata: [DON', False),
        (b'data: {"choices": [{"delta": {"content": "data: [DONE]"}}]}\n\n', False),
        (b'data: {"choices": [{"delta": {"content": "\\ndata: [DONE]"}}]}\n\n', False),
    ],
)
def test_a_client_that_hangs_up_after_the_end_had_its_whole_answer(said: bytes, is_whole: bool) -> None:
    """After `[DONE]` nothing is missing, however the connection ends; a text that quotes it is not the end."""
    for size in (1, len(said)):
        ticket, _ = make()
        ticket.began(200, CIMultiDictProxy(CIMultiDict({"Content-Type": "text/event-stream"})))
        for start in range(0, len(said), size):
            ticket.passed(said[start : start + size])
        ticket.ended(complete=False)
        assert (is_whole, "answered" if is_whole else "cut") == (ticket.is_whole, outcome(ticket))


@given(st.lists(st.sampled_from(["began", "passed", "whole", "cut", "settle"]), max_size=12))
def test_whatever_happens_it_is_settled_exactly_once(happening: list[str]) -> None:
    """In any order, any number of times; nothing raises, and later events change nothing that was told."""
    ticket, events = make()
    for event in happening:
        match event:
            case "began":
                ticket.began(200, JSON)
            case "passed":
                ticket.passed(ANSWER)
            case "settle":
                ticket.settle()
            case _:
                ticket.ended(complete=event == "whole")
    ticket.settle()
    assert 1 == events.told.count("settled")


def test_the_time_that_it_waited_for_us_is_known() -> None:
    ticket, _ = make()
    assert 0.0 == ticket.ours_ms
    ticket.prepared()
    assert ticket.ours_ms > 0
    assert "settled=False" in repr(ticket)
