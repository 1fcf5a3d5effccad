"""The learner's second process: the same gradients as without it, also after it was killed, and nothing left behind."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from engram.actors.unroll import Unroll
from engram.agents.agent import AgentConfig
from engram.launch import ray_helper
from engram.launch.config import RunConfig
from engram.launch.ray_helper import RayHelper, memory_file
from engram.launch.ray_session import start_ray
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

CONFIG = RunConfig(
    env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 9},
    agent=AgentConfig(core="rmc", core_args={"head_size": 4}),
    learner=LearnerConfig(helper_share=0.4),
    envs_per_actor=10,
    unroll_length=8,
)


@pytest.fixture(scope="module")
def rays() -> Iterator[None]:
    """Ray, and one thread in this process, as learners and helpers have it: sums depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start_ray(1)
    yield
    ray.shutdown()
    torch.set_num_threads(threads)


def learner_and_batch() -> tuple[Learner, Unroll]:
    torch.manual_seed(0)
    factory = CONFIG.factory()
    learner = Learner(factory.make_agent(factory.make_batch(num_envs=1)), CONFIG.learner, 1000)
    return learner, factory.make_actor(0).unroll()


def after_updates(learner: Learner, batch: Unroll, count: int) -> tuple[torch.Tensor, list[dict[str, float]]]:
    metrics = [learner.step(batch) for _ in range(count)]
    return torch.cat([p.detach().flatten() for p in learner.agent.parameters()]), metrics


def names() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("engram-helper-*")} if Path("/dev/shm").is_dir() else set()


def test_updates_are_those_of_one_process_to_the_bit_even_when_the_helper_dies(rays: None) -> None:
    before = names()
    learner, batch = learner_and_batch()
    alone = after_updates(learner, batch, 4)
    learner, batch = learner_and_batch()
    learner.helper = helper = RayHelper(learner.agent, CONFIG.factory(), niceness=0)
    first = after_updates(learner, batch, 2)[1]
    assert names() == before, "mapped by both, the file has no name any more"
    process: Any = helper._process
    os.kill(ray.get(process.number.remote()), 9)
    values, last = after_updates(learner, batch, 2)
    assert [*first, *last] == alone[1]
    assert torch.equal(values, alone[0])
    assert ray.get(helper._process.number.remote()) != os.getpid(), "a new helper is at work"
    helper.close()
    assert names() == before


def test_memory_for_the_vectors_is_claimed_at_once_or_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_helper.tempfile, "gettempdir", lambda: str(tmp_path))
    full = Path("/dev/shm").is_dir() and os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    file = Path(memory_file(1000))
    assert file.stat().st_size == 4000
    assert file.stat().st_blocks * 512 >= 4000, "not sparse"
    file.unlink()
    if full and full < os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize // 2 < 2**33:
        other = Path(memory_file(full // 4 + 2**20))
        assert other.parent == tmp_path
        other.unlink()
    with pytest.raises(OSError, match="no room for a file"):
        memory_file(2**60)
