"""An episode, step by step: observations, policy, actions, and the recurrent state.

An actor plays the episode as in training and in `rl-eval`, one step per unroll; a hook records the
core during this episode only.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...actors.actor import Actor
from ...agents.inside import Trace, over_time, recorded
from ...agents.specs import BoxSpec, log_policy

Pixels = NDArray[np.uint8]
MOST_STEPS = 2000  # Maximum steps of an episode
SINGLE = "observation"  # Name of an observation that is not a dict


class Recording(NamedTuple):
    """Steps 0..T-1 of one episode; the last one has the final observation."""

    boards: list[Pixels]  # The whole board at every step; empty for an environment without images
    views: list[Pixels]  # The observation as an image; empty if the environment renders only the whole board
    observations: dict[str, NDArray[Any]]  # [T, ...]: each array of the observation, by name; empty if there are views
    options: list[str]  # Names of the A options, or of a Box's parameters
    probabilities: NDArray[np.float32]  # [T, A]: probability of every option; for a Box its Gaussians' parameters
    actions: NDArray[Any]  # [T, K]: the actions, by choice
    values: NDArray[np.float32]  # [T]: the value estimates
    rewards: NDArray[np.float32]  # [T]: the reward received with the observation
    facts: dict[str, list[str]]  # T values of each of the environment's facts about the level and the step, by name
    complete: bool  # Whether the episode ended; otherwise, it was cut off
    trace: Trace  # Every step of the core


def record(actor: Actor, *, images: bool = True, most: int = MOST_STEPS) -> Recording:
    """Record up to `most` steps of the next episode of an actor's only environment, with or without boards and views.
    The actor is at the beginning of an episode, with an unroll length of 1."""
    batch: Any = actor.batch
    spec = actor.agent.action_spec
    boards: list[Pixels] = []
    views: list[Pixels] = []
    steps: list[Any] = []  # Unrolls of one step
    facts: dict[str, list[str]] = {}
    over = False
    with recorded(actor.agent.core) as calls:
        while not over and len(steps) < most:
            if images and (board := rendered(batch, True)) is not None:
                boards.append(board)
            if images and getattr(batch, "draws_views", True) and (view := rendered(batch, False)) is not None:
                views.append(view)
            for name, values in (batch.facts() if hasattr(batch, "facts") else {}).items():
                names = batch.fact_values[name]
                facts.setdefault(name, []).append(names[values[0]] if names else str(values[0]))
            steps.append(actor.unroll())
            # The action of the last step is ignored, and the board then is the next episode's.
            over = bool(steps[-1].env.terminated[0, 0] | steps[-1].env.truncated[0, 0])
    policies = [log_policy(spec, step.agent.logits[0, 0]) for step in steps]
    observations = [named_arrays(step.env.observation) for step in steps]
    return Recording(
        boards,
        views,
        {} if views else {name: np.stack([arrays[name] for arrays in observations]) for name in observations[0]},
        option_names(actor),
        np.stack([(policy if isinstance(spec, BoxSpec) else policy.exp()).numpy() for policy in policies]),
        np.stack([step.agent.action[0, 0].reshape(-1).numpy() for step in steps]),
        np.stack([step.agent.value[0, 0].numpy() for step in steps]),
        np.stack([step.env.reward[0, 0].numpy() for step in steps]),
        facts,
        over,
        over_time(calls, 0),
    )


def option_names(actor: Actor) -> list[str]:
    """Names of all actions, of the options of several choices, or of the parameters of a Box's Gaussians."""
    spec = actor.agent.action_spec
    if isinstance(spec, BoxSpec):
        return [f"{name} {k + 1}" for name in ("mean", "log deviation") for k in range(spec.size)]
    if len(spec.choices) > 1:
        return [f"choice {k + 1}: {option}" for k, options in enumerate(spec.choices) for option in range(options)]
    return list(getattr(actor.batch, "action_names", ())) or [str(option) for option in range(sum(spec.choices))]


def named_arrays(observation: Any, name: str = "") -> dict[str, NDArray[Any]]:
    """Return the arrays of environment 0 at step 0 of an unroll, by name; dots join keys of nested dicts."""
    if isinstance(observation, Tensor):
        return {name or SINGLE: observation[0, 0].numpy()}
    arrays: dict[str, NDArray[Any]] = {}
    for key, part in observation.items():
        arrays |= named_arrays(part, f"{name}.{key}" if name else str(key))
    return arrays


def rendered(batch: Any, full: bool) -> Pixels | None:
    """An image of environment 0, or None if the environment renders none."""
    try:
        return batch.draw(0, full=full)
    except (NotImplementedError, ValueError):  # Gymnasium environments raise ValueError
        return None
