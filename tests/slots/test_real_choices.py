"""The prediction against the server itself: random prompts of token ids, each slot it takes compared with ours."""

import random
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.servers import LlamaServer
from proxy.slots.holding import BYTES_PER_TOKEN, Need, Nothing, Talk, share
from proxy.slots.ledger import Ledger, Look
from proxy.slots.prediction import Choice, choose, is_overwritten, loaded
from tests.conftest import StartLlama
from tests.demo.asking import ask
from tests.slots.beliefs import chain

WORDS = "abcdefghijklmnopqrstuvwxyz"
"""A prompt is a text, each letter a message of two tokens, so that two prompts share whole messages or none."""
FIRST_TOKEN = 300
REQUESTS = 60
LOADING_REQUESTS = 50
"""Of two copies that serve alike the wrong one may be believed gone; so a belief does not stay right for ever."""
LOADED = 10
"""Of these, so many at least must have had something loaded, or nothing was tried."""


def tokens(prompt: str) -> list[int]:
    return [token for letter in prompt for token in (FIRST_TOKEN + 2 * ord(letter), FIRST_TOKEN + 2 * ord(letter) + 1)]


def needed(prompt: str) -> Need:
    return Need(chain(prompt), (int(2 * BYTES_PER_TOKEN),) * len(prompt))


def held(prompt: str) -> Talk:
    need = needed(prompt)
    return Talk(need.chain, need.sizes, n_prompt=2 * len(prompt), n_tokens=2 * len(prompt))


class Watched:
    """A server and what we believe of it, entered as the engine does."""

    def __init__(self, server: LlamaServer) -> None:
        self.server = server
        self.reuse = 0
        """Tokens that the last request should have reused."""
        self.has_loaded = False
        """Whether they came from host memory."""
        looks = self.looks()
        self.ledger = Ledger(len(looks))
        self.ledger.first_look(looks)

    def looks(self) -> list[Look]:
        _, told = ask(self.server, "/slots")
        return [
            Look(slot["id"], slot.get("id_task"), slot.get("n_prompt_tokens") or 0, slot["is_processing"])
            for slot in told
        ]

    def complete(self, prompt: list[Any], **more: Any) -> Any:
        question = {"prompt": prompt, "n_predict": 0, "cache_prompt": True, "grammar": 'root ::= ""', **more}
        status, answer = ask(self.server, "/completion", question)
        assert 200 == status, answer
        return answer

    def request(self, prompt: str) -> tuple[Choice | None, int, int]:
        """Our choice, the server's, and how many tokens it reused."""
        need = needed(prompt)
        expected = choose(need, self.ledger.idle())
        answer = self.complete(tokens(prompt))
        slot = answer["id_slot"]
        old = self.ledger.slots[slot].holds
        if not is_overwritten(need, old):
            self.ledger.copied(old)
        copy = loaded(need, old, self.ledger.copies.values())
        self.has_loaded = copy is not None
        if copy is not None:
            self.ledger.taken(copy)
        self.reuse = share(need, copy or old) or 0
        self.ledger.hold(slot, held(prompt))
        self.ledger.observe(self.looks(), [slot])
        return expected, slot, answer["timings"]["cache_n"]

    def copy(self, slot: int) -> None:
        self.complete([[]], id_slot=slot)
        self.ledger.copied(self.ledger.slots[slot].holds)
        self.ledger.observe(self.looks(), [slot])

    def erase(self, slot: int) -> None:
        assert 200 == ask(self.server, f"/slots/{slot}?action=erase", {})[0]
        self.ledger.hold(slot, Nothing())
        self.ledger.observe(self.looks(), [slot])

    def intrude(self, prompt: str) -> None:
        """Somebody else's request, which we only see in the next look."""
        self.complete(tokens(prompt))
        self.ledger.observe(self.looks())


def some_prompt(dice: random.Random, known: list[str]) -> str:
    """The continuation, the beginning or an edit of an earlier one, or a new one."""
    earlier = dice.choice(known) if known and dice.random() < 0.8 else ""
    kept = earlier[: dice.choice([len(earlier), dice.randint(0, len(earlier))])]
    return kept + "".join(dice.choices(WORDS, k=dice.randint(1, 12)))


@pytest.mark.parametrize(
    "flags",
    [(), ("-np", "4"), ("-np", "1"), ("-np", "3", "--cache-ram", "0")],
    ids=lambda flags: " ".join(flags) or "default",
)
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_the_server_takes_the_slot_that_was_predicted(
    start_llama: StartLlama, tmp_path: Path, kind: Any, flags: tuple[str, ...]
) -> None:
    """Through any mixture of requests, copies and erased slots."""
    watched = Watched(start_llama(kind, *flags, "--slot-save-path", str(tmp_path), ctx=4096))
    dice, known = random.Random(1), list[str]()
    for number in range(REQUESTS):
        prompt = some_prompt(dice, known)
        known.append(prompt)
        expected, slot, _ = watched.request(prompt)
        assert expected is not None
        assert expected.slot == slot, f"request {number} {prompt!r} of {known}: {watched.ledger!r}"
        if dice.random() < 0.2:
            watched.copy(dice.randrange(len(watched.ledger.slots)))
        if dice.random() < 0.1:
            watched.erase(dice.randrange(len(watched.ledger.slots)))


@pytest.mark.parametrize(
    "flags", [(), ("-np", "4", "--no-cache-idle-slots"), ("-np", "1")], ids=lambda flags: " ".join(flags) or "default"
)
def test_the_server_loads_the_copy_that_was_predicted(
    start_llama: StartLlama, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """As many tokens are reused as that copy, or else the slot, has in common with the prompt."""
    watched = Watched(start_llama("dense", *flags, "--slot-save-path", str(tmp_path), ctx=4096))
    dice, known = random.Random(2), list[str]()
    n_loaded = 0
    for number in range(LOADING_REQUESTS):
        prompt = some_prompt(dice, known)
        known.append(prompt)
        _, _, cache_n = watched.request(prompt)
        n_loaded += watched.has_loaded
        # One token at least is prefilled.
        assert min(watched.reuse, 2 * len(prompt) - 1) == cache_n, f"request {number} {prompt!r} of {known}"
        if dice.random() < 0.2:
            watched.copy(dice.randrange(len(watched.ledger.slots)))
    assert n_loaded >= LOADED


def test_a_strangers_requests_are_noticed_and_the_next_choices_are_right_again(start_llama: StartLlama) -> None:
    """What it used is unknown, and its order of use is the server's still."""
    watched = Watched(start_llama("dense", "-np", "4"))
    for prompt in ("aaaa", "bbbb", "cccc", "dddd"):
        watched.request(prompt)
    watched.intrude("xxxx")  # takes the least recently used slot: that of "aaaa"
    for prompt in ("eeee", "cccce", "ffff"):
        expected, slot, _ = watched.request(prompt)
        assert expected is not None
        assert expected.slot == slot


@pytest.mark.parametrize("kept", [3, 5, 8], ids=["a third", "half", "most"])
def test_what_is_said_to_be_overwritten_is_lost_and_the_rest_comes_back(start_llama: StartLlama, kept: int) -> None:
    """A slot that keeps half or more loses its tail for good; what keeps less was copied to host memory."""
    watched = Watched(start_llama("dense", "-np", "1"))
    first = "abcdefghij"
    watched.request(first)
    choice, *_ = watched.request(first[:kept] + "x" * (10 - kept))
    assert choice is not None
    watched.request("zzzz")
    _, _, reused = watched.request(first + "y")
    assert (2 * kept if choice.overwrites else 2 * len(first)) == reused
    assert choice.overwrites is (kept >= 5)


def test_a_copied_conversation_comes_back_after_its_slot_was_overwritten(start_llama: StartLlama) -> None:
    """The empty prompt copies what the slot holds and leaves it there."""
    watched = Watched(start_llama("dense", "-np", "1"))
    first = "abcdefghij"
    watched.request(first)
    watched.copy(0)
    assert held(first) == watched.ledger.slots[0].holds
    watched.request(first[:8] + "xx")
    watched.request("zzzz")
    _, _, reused = watched.request(first + "y")
    assert 2 * len(first) == reused


def test_with_default_flags_idle_slots_are_moved_to_host_memory(start_llama: StartLlama) -> None:
    """The ledger sees them emptied by the next request, and knows where the conversation is."""
    watched = Watched(start_llama("dense"))
    watched.request("abcdefghij")
    watched.request("zzzz")
    assert held("abcdefghij") == watched.ledger.longest_copy(needed("abcdefghijk"))
    _, _, reused = watched.request("abcdefghijk")
    assert 20 == reused


def test_without_host_memory_nothing_is_believed_to_have_moved(start_llama: StartLlama) -> None:
    """The slots of such a server are never emptied by another's request."""
    watched = Watched(start_llama("dense", "--cache-ram", "0"))
    watched.request("abcdefghij")
    watched.request("zzzz")
    assert 0 == len(watched.ledger.copies)
