"""`rl-eval --minari NAME`: episodes of a trained agent as an offline Minari dataset."""

import importlib
import os
import warnings
from typing import Any

import numpy as np
import torch

from ...actors.actor import Actor
from ...agents.values import map_leaves
from ...base.errors import EngramError
from ...envs.foreign import ForeignBatch


def minari_module(name: str) -> Any:
    """The package, if it is installed and no dataset is called `name`. Raises EngramError."""
    try:
        minari = importlib.import_module("minari")
        importlib.import_module("h5py")
    except ImportError as problem:
        raise EngramError(f"--minari: {problem}; pip install 'engram-rl[export]'") from problem
    try:
        minari.dataset.minari_dataset.parse_dataset_id(name)
    except ValueError as problem:
        raise EngramError(f"--minari: {name!r} is not a dataset name; allowed: [NAMESPACE/]NAME-vVERSION") from problem
    path = minari.storage.get_dataset_path(name)
    if os.path.exists(path):
        raise EngramError(f"--minari: there is a dataset {name} already: {path}; allowed: another name or version")
    return minari


def write_dataset(minari: Any, name: str, actor: Actor, episodes: int, description: str) -> str:
    """Write the first `episodes` episodes of an actor, counted as in `play`, as a dataset; returns a message.

    Observations are the network's inputs; actions are those of the environment's action space.
    """
    batch = actor.batch
    foreign = isinstance(batch, ForeignBatch)
    taken: Any = batch.as_the_environment_takes if foreign else (lambda actions: actions)
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=number,
            observations=each["observations"],
            actions=taken(each["actions"]),
            rewards=each["rewards"],
            terminations=each["terminations"],
            truncations=each["truncations"],
        )
        for number, each in enumerate(recorded(actor, episodes))
    ]
    with warnings.catch_warnings(action="ignore"):  # about the missing author and permanent link
        minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=batch.single_observation_space,
            action_space=batch.vector.single_action_space if foreign else batch.single_action_space,
            description=description,
            algorithm_name="engram",
            jpeg_encoding=False,
        )
    return f"wrote {len(buffers):,} episodes to the Minari dataset {name}"


def recorded(actor: Actor, episodes: int) -> list[dict[str, Any]]:
    """Record `episodes` episodes: arrays of L + 1 observations, and of L actions, rewards, terminations and
    truncations."""
    n = actor.batch.num_envs
    quota = episodes // n + (np.arange(n) < episodes % n)
    unrolls: list[Any] = []
    ended = np.zeros(n, np.int64)
    while (ended < quota).any():
        unrolls.append(actor.unroll())
        env = unrolls[-1].env
        ended += (env.terminated[1:] | env.truncated[1:]).sum(0).numpy()
    env = map_leaves(lambda *parts: torch.cat([part[1:] for part in parts]).numpy(), *(u.env for u in unrolls))
    first = map_leaves(lambda part: part[:1].numpy(), unrolls[0].env)
    env = map_leaves(lambda start, rest: np.concatenate([start, rest]), first, env)
    actions = torch.cat([unroll.agent.action for unroll in unrolls]).numpy()
    result: list[dict[str, Any]] = []
    for b in range(n):
        # The entry after an episode's last action has its flag; the next entry starts an episode.
        ends = np.flatnonzero(env.terminated[:, b] | env.truncated[:, b])[: quota[b]]
        for start, end in zip([0, *(ends + 1)], ends, strict=False):
            result.append(
                {
                    "observations": map_leaves(lambda x, s=start, e=end, b=b: x[s : e + 1, b], env.observation),
                    "actions": actions[start:end, b],
                    "rewards": env.reward[start + 1 : end + 1, b],
                    "terminations": env.terminated[start + 1 : end + 1, b],
                    "truncations": env.truncated[start + 1 : end + 1, b],
                }
            )
    return result
