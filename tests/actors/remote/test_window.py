"""The window of requests keeps the bound on policy lag, whatever the actors do, and lets the learner work."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engram.actors.remote.slot import ActorSlot, Request, RequestWindow
from pools import least_max_lag

DONE: Any = "an unroll"


@dataclass
class Run:
    """A learner of one or more members, and actors that answer when the test says so."""

    batch_size: int
    max_lag: int
    num_envs: int
    num_actors: int
    members: int
    versions: list[int] = field(default_factory=list[int])
    waiting: list[deque[int]] = field(default_factory=list[deque[int]])
    """Versions that acted, one for each environment that waits for its update, by member."""
    largest: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.window = RequestWindow(self.batch_size, self.max_lag, self.num_envs, self.num_actors)
        self.slots = [ActorSlot(number) for number in range(self.num_actors)]
        self.versions = [0] * self.members
        self.waiting = [deque() for _ in range(self.members)]
        self.acted: dict[int, int] = {}

    def ask(self) -> None:
        for _ in range(self.window.requests_per_slot):
            for slot in self.slots:
                allowed = [m for m in range(self.members) if self.window.has_room(m)]
                if allowed and len(slot.requests) < self.window.requests_per_slot:
                    member = min(allowed, key=lambda m: self.versions[m])
                    request = Request(slot, member, self.sent, None)
                    self.acted[self.sent] = self.versions[member]
                    self.sent += 1
                    slot.requests.append(request)
                    self.window.sent(request)

    def take(self) -> None:
        """Hand on what may be handed on, and learn from every batch that is full."""
        while (request := self.window.next()) is not None:
            width = self.window.unrolls * self.num_envs
            self.waiting[request.member].extend([self.acted[request.index]] * width)
            self.ask()
        for member, waiting in enumerate(self.waiting):
            while len(waiting) >= self.batch_size:
                batch = [waiting.popleft() for _ in range(self.batch_size)]
                self.largest = max(self.largest, self.versions[member] - min(batch))
                self.versions[member] += 1
                self.window.learned(member, self.batch_size)
                self.ask()


@pytest.mark.integration
@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.integers(1, 40),
    st.integers(0, 3),
    st.integers(1, 50),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_the_bound_is_kept_and_updates_go_on(
    data: st.DataObject, batch_size: int, max_lag: int, num_envs: int, num_actors: int, members: int
) -> None:
    assume(max_lag >= least_max_lag(batch_size, num_envs))
    run = Run(batch_size, max_lag, num_envs, num_actors, members)
    for _ in range(60):
        run.ask()
        open_slots = [slot for slot in run.slots if slot.requests]
        assert open_slots, "nothing is under way and nothing may be asked for"
        slot = data.draw(st.sampled_from(open_slots))
        request = slot.requests.popleft()
        if data.draw(st.integers(0, 5)):
            request.answer = DONE
        else:
            run.window.lost(request)
        run.take()
        assert run.largest <= max_lag
    for _ in range(400):  # every request is answered: however they overtook each other, each member learns
        if min(run.versions) >= 1:
            break
        run.ask()
        for slot in run.slots:
            if slot.requests:
                slot.requests.popleft().answer = DONE
        run.take()
    assert min(run.versions) >= 1
    assert run.largest <= max_lag


@pytest.mark.parametrize(("num_actors", "num_envs"), [(1, 64), (2, 32), (3, 22), (64, 1), (8, 64), (1, 16)])
def test_a_batch_is_made_while_the_one_before_is_learned_and_no_more(num_actors: int, num_envs: int) -> None:
    window = RequestWindow(64, 1, num_envs, num_actors)
    width, sent = window.unrolls * num_envs, 0
    while window.has_room(0):
        window.sent(Request(ActorSlot(0), 0, sent, None))
        sent += 1
    assert 64 < sent * width <= 2 * 64  # one in the learner's hands, one in the making
    assert window.requests_per_slot * num_actors * width >= min(64, num_actors * num_envs)
    window.learned(0, 64)
    assert window.has_room(0)
    assert window.has_room(1), "every member has a window of its own"


def test_an_answer_that_overtakes_waits_for_the_older_one() -> None:
    window = RequestWindow(8, 1, 4, 2)
    slow, fast = ActorSlot(0), ActorSlot(1)
    first, second, third = (Request(slot, 0, index, None) for index, slot in enumerate((slow, fast, fast)))
    for request in (first, second, third):
        window.sent(request)
    second.answer = DONE
    assert window.next() is None
    assert window.blocking() is slow
    window.lost(first)
    assert window.next() is second
    assert window.blocking() is None
    third.answer = DONE
    assert window.next() is third


def test_nothing_that_was_asked_for_before_a_copy_counts() -> None:
    window = RequestWindow(4, 1, 4, 1)
    old = [Request(ActorSlot(0), 0, index, None) for index in range(2)]
    for request in old:
        window.sent(request)
        request.answer = DONE
    assert not window.has_room(0)
    window.forget(0)
    assert window.has_room(0)
    assert window.next() is None
    window.lost(old[0])
    for index in (2, 3):
        window.sent(Request(ActorSlot(0), 0, index, None))
    assert not window.has_room(0)
