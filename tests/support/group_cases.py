"""Learners of one agent in several processes: each learns from its share of random batches."""

import contextlib
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from engram.actors.packed import map_tensors
from engram.actors.unroll import some_environments
from engram.learners.batches import Group
from engram.learners.group import GlooGroup
from engram.learners.learner import Learner
from reference_cases import TOTAL_STEPS, Case, batches, in_double, learned, make_agent

UPDATES = 5
MakeGroup = Callable[[Any, int, Sequence[int]], Group]
"""(store, rank, widths) -> the group of one learner."""


class Learned(NamedTuple):
    """The result of one learner."""

    tensors: dict[str, Tensor]
    metrics: list[dict[str, float]]
    counts: tuple[int, int]
    """Updates and steps."""


def widths(num_envs: int, learners: int) -> list[int]:
    """Environments of each learner's share, as equal as can be."""
    return [num_envs // learners + (rank < num_envs % learners) for rank in range(learners)]


def learn_share(case: Case, rank: int, learners: int, double: bool, store: str, make_group: MakeGroup) -> Learned:
    """Learn from this rank's share of each of UPDATES batches."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        with in_double(patch):
            agent = make_agent(case)
            learned_from = batches(case, agent, number=UPDATES)
        if double:
            stack.enter_context(in_double(patch))
        else:
            agent = agent.float()
        learner, shares = Learner(agent, case.learner, TOTAL_STEPS), widths(case.num_envs, learners)
        if learners > 1:
            learner.join(make_group(FileStore(store, learners), rank, shares))
        own = slice(learner.group.first, learner.group.first + shares[rank])
        for batch in learned_from:
            share = some_environments(batch, own)
            learner.learn(share if double else map_tensors(lambda x: x.float() if x.is_floating_point() else x, share))
        return Learned(learned(learner), learner.read(), (learner.updates, learner.steps))


class Processes:
    """Processes with the ranks from 1 on; this one has rank 0."""

    def __init__(self, folder: Path, learners: int) -> None:
        self._folder, self._cases = folder, 0
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for _ in range(learners - 1):
            here, there = context.Pipe()
            self._pipes.append(here)
            self._processes.append(context.Process(target=_serve, args=(there,), daemon=True))
            self._processes[-1].start()

    def learn(self, case: Case, learners: int, double: bool, make_group: MakeGroup = GlooGroup) -> Sequence[Learned]:
        """The results of all ranks."""
        self._cases += 1
        store = str(self._folder / f"store-{self._cases}")
        pipes = self._pipes[: learners - 1]
        for rank, pipe in enumerate(pipes, 1):
            pipe.send((case, rank, learners, double, store, make_group))
        own = learn_share(case, 0, learners, double, store, make_group)
        return [own, *(pipe.recv() for pipe in pipes)]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(10)
            process.kill()


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(learn_share(*pipe.recv()))
