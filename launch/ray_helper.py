"""A second learner process: differentiates part of each batch on a core that acting leaves idle.

Weights and gradients lie in memory that both processes map: through an object store they would be copied six times per
update, which takes as long as a tenth of the update.
"""

import atexit
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from ..actors.factory import ActorFactory
from ..actors.ray_pool import share_tensors
from ..actors.unroll import Unroll
from ..agents.agent import Agent
from ..agents.process import prepare_process
from ..agents.weights import flatten, load
from ..learners.config import LearnerConfig
from ..learners.learner import Gradients, LocalHelper, differentiate


class SharedVectors(NamedTuple):
    """Two vectors in a file in memory."""

    weights: Tensor
    """float32 [W], as `flatten` gives them."""
    gradients: Tensor
    """float32 [P], of all parameters one after the other."""

    @classmethod
    def map(cls, file: str, agent: Agent) -> "SharedVectors":
        """The vectors for such an agent in a file of `memory_file`; each process sees what the other writes."""
        numbers = torch.from_file(file, shared=True, size=vector_size(agent), dtype=torch.float32)
        weights = sum(value.numel() for value in agent.state_dict().values())
        return cls(*numbers.split([weights, len(numbers) - weights]))


def vector_size(agent: Agent) -> int:
    """How many numbers SharedVectors hold for an agent."""
    return sum(x.numel() for x in [*agent.state_dict().values(), *agent.parameters()])


def memory_file(numbers: int) -> str:
    """A new file for so many float32, in memory where there is room, else on disk. Raises OSError if there is none."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            descriptor, name = tempfile.mkstemp(prefix="engram-helper-", dir=folder)
            try:
                # Without this a full /dev/shm would show only later, as a bus error.
                os.posix_fallocate(descriptor, 0, 4 * numbers)
                return name
            except OSError:
                os.unlink(name)
            finally:
                os.close(descriptor)
    raise OSError(f"no room for a file of {4 * numbers:,} bytes in /dev/shm or {tempfile.gettempdir()}")


class HelperProcess:
    """What runs in the helper's process: the learner's network and its loss."""

    def __init__(self, factory: ActorFactory, file: str, niceness: int) -> None:
        os.nice(niceness)
        prepare_process(1)
        share_tensors()
        self._agent = factory.make_agent(factory.make_batch(num_envs=1))
        self._shared = SharedVectors.map(file, self._agent)

    def number(self) -> int:
        """The number of this process."""
        return os.getpid()

    def differentiate(self, config: LearnerConfig, part: Unroll, scale: float, metric_scale: float) -> Any:
        """The gradient of some columns goes to the shared vector; returns their share of the metrics."""
        load(self._agent, self._shared.weights.numpy())
        gradients, metrics = differentiate(self._agent, part, config, scale, metric_scale)
        pairs = zip(self._agent.parameters(), gradients, strict=True)
        flat = [torch.zeros(p.numel()) if g is None else g.flatten() for p, g in pairs]
        torch.cat(flat, out=self._shared.gradients)
        return metrics.numpy()


class RayHelper:
    """A GradientHelper in a process of its own; if that is lost, the work is done here and it is started anew."""

    def __init__(self, agent: Agent, factory: ActorFactory, niceness: int) -> None:
        share_tensors()
        self._here = LocalHelper()
        self._factory, self._niceness = factory, niceness
        self._start_process(agent)
        atexit.register(self._forget_name)

    def start(self, agent: Agent, config: LearnerConfig, part: Unroll, scale: float, metric_scale: float) -> None:
        """See GradientHelper."""
        self._agent = agent
        self._here.start(agent, config, part, scale, metric_scale)
        self._shared.weights.copy_(torch.from_numpy(flatten(agent)))
        self._answer = self._process.differentiate.remote(config, part, scale, metric_scale)

    def finish(self) -> tuple[Gradients, Tensor]:
        """See GradientHelper."""
        try:
            metrics = ray.get(self._answer)
        except RayError:
            self.close()
            self._start_process(self._agent)
            return self._here.finish()
        self._forget_name()
        parameters = list(self._agent.parameters())
        parts = self._shared.gradients.split([p.numel() for p in parameters])
        return [g.view_as(p) for g, p in zip(parts, parameters, strict=True)], torch.from_numpy(metrics)

    def close(self) -> None:
        """Stop the process."""
        ray.kill(self._process)
        self._forget_name()

    def _start_process(self, agent: Agent) -> None:
        self._file = memory_file(vector_size(agent))
        self._shared = SharedVectors.map(self._file, agent)
        # The memory is this machine's: on a cluster too, the helper works beside the learner.
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote = ray.remote(num_cpus=0, scheduling_strategy=here)(HelperProcess)
        self._process: Any = remote.remote(self._factory, self._file, self._niceness)

    def _forget_name(self) -> None:
        """Once both processes have mapped the file it needs no name, and goes when they go, however they end."""
        Path(self._file).unlink(missing_ok=True)
