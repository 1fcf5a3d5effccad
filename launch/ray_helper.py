"""A second learner process: differentiates part of each batch on a core that acting leaves idle."""

import os
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError
from torch import Tensor

from ..actors.factory import ActorFactory
from ..actors.ray_pool import share_tensors
from ..actors.unroll import Unroll
from ..agents.agent import Agent
from ..agents.weights import Weights, load
from ..learners.config import LearnerConfig
from ..learners.learner import Gradients, LocalHelper, differentiate


class HelperProcess:
    """What runs in the helper's process: the learner's network and its loss."""

    def __init__(self, factory: ActorFactory, config: LearnerConfig, niceness: int) -> None:
        os.nice(niceness)
        torch.set_num_threads(1)
        share_tensors()
        self._agent = factory.make_agent(factory.make_batch(num_envs=1))
        self._config = config

    def differentiate(
        self, weights: Weights, part: Unroll, scale: float, metric_scale: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The gradient of some columns as one vector, and their share of the metrics."""
        load(self._agent, weights.values)
        gradients, metrics = differentiate(self._agent, part, self._config, scale, metric_scale)
        pairs = zip(self._agent.parameters(), gradients, strict=True)
        flat = torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for p, g in pairs])
        return flat.numpy(), metrics.numpy()


class RayHelper:
    """A GradientHelper in a process of its own; if that is lost, the work is done here and it is started anew."""

    def __init__(self, agent: Agent, factory: ActorFactory, config: LearnerConfig, niceness: int) -> None:
        share_tensors()
        self._parameters = list(agent.parameters())
        self._here = LocalHelper(agent, config)
        self._arguments = (factory, config, niceness)
        self._start_process()

    def start(self, weights: Weights, part: Unroll, scale: float, metric_scale: float) -> None:
        """See GradientHelper."""
        self._here.start(weights, part, scale, metric_scale)
        self._answer = self._process.differentiate.remote(weights, part, scale, metric_scale)

    def finish(self) -> tuple[Gradients, Tensor]:
        """See GradientHelper."""
        try:
            flat, metrics = ray.get(self._answer)
        except RayError:
            self._start_process()
            return self._here.finish()
        sizes = [p.numel() for p in self._parameters]
        parts = torch.from_numpy(flat).split(sizes)
        return [g.view_as(p) for g, p in zip(parts, self._parameters, strict=True)], torch.from_numpy(metrics)

    def close(self) -> None:
        """Stop the process."""
        ray.kill(self._process)

    def _start_process(self) -> None:
        self._process: Any = ray.remote(num_cpus=0)(HelperProcess).remote(*self._arguments)
