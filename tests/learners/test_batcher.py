"""Every column of every unroll reaches the learner exactly once, in order."""

from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.actors.factory import ActorFactory
from engram.actors.packed import header
from engram.actors.unroll import Stored, Unroll, join, some_environments
from engram.agents.config import AgentConfig
from engram.learners.batches import Batcher

WIDTH = 6


@cache
def recorded() -> Unroll:
    agent = AgentConfig(core="feedforward")
    return ActorFactory(env="boxworld", agent=agent, num_envs=WIDTH, unroll_length=2, seed=0).make_actor(0).unroll()


def numbered(start: int, width: int) -> Unroll:
    """An unroll whose environments carry the numbers start, start + 1, ..., and one finished episode."""
    part = some_environments(recorded(), slice(0, width))
    return part._replace(
        weights_version=torch.arange(start, start + width),
        episodes=torch.tensor([[float(start), 0.0, 1.0]]),
    )


@settings(deadline=None, max_examples=50)
@given(widths=st.lists(st.integers(1, WIDTH), min_size=1, max_size=12), batch_size=st.integers(1, 9))
def test_columns_come_out_once_and_in_order(widths: list[int], batch_size: int) -> None:
    batcher = Batcher(batch_size)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    columns_out: list[int] = []
    episodes_out: list[float] = []
    for start, width in zip(starts, widths, strict=True):
        batcher.add(numbered(start, width))
        while (batch := batcher.take()) is not None:
            assert batch.env.reward.shape[1] == batch_size == batch.agent.logits.shape[1]
            columns_out += batch.weights_version.tolist()
            episodes_out += batch.episodes[:, 0].tolist()
    assert columns_out == list(range(sum(widths) // batch_size * batch_size))
    assert episodes_out == [float(start) for start in starts if start < len(columns_out)]


@settings(deadline=None, max_examples=50)
@given(widths=st.lists(st.integers(1, WIDTH), min_size=1, max_size=12), batch_size=st.integers(1, 9))
def test_batches_of_stored_unrolls_name_their_parts(widths: list[int], batch_size: int) -> None:
    """The same environments as in batches of whole unrolls."""
    batcher, stored, start = Batcher(batch_size), dict[str, Unroll](), 0
    for number, width in enumerate(widths):
        stored[str(number)] = numbered(start, width)
        batcher.add(header(stored[str(number)])._replace(stored=(Stored(str(number), 0, width),)))
        start += width
    while (batch := batcher.take()) is not None:
        assert batch.env is None
        assert len(batch.weights_version) == batch_size
        parts = [some_environments(stored[each.parcel], slice(each.first, each.end)) for each in batch.stored]
        assert torch.equal(join(parts).weights_version, batch.weights_version)
        assert torch.equal(join(parts).episodes, batch.episodes)


def test_next_pulls_only_as_much_as_it_needs() -> None:
    pulls = iter([numbered(0, 4), numbered(4, 4)])
    batcher = Batcher(3)
    assert batcher.next(lambda: next(pulls)).weights_version.tolist() == [0, 1, 2]
    assert batcher.next(lambda: next(pulls)).weights_version.tolist() == [3, 4, 5]
    assert next(pulls, None) is None
