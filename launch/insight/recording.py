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
    probabilities: NDArray[np.float32]
    """[T, A]: probability of every action (of every option of every choice); for a Box the parameters of its
    Gaussians."""
    actions: NDArray[Any]  # [T, K]: the actions, by choice
    values: NDArray[np.float32]  # [T]: the value estimates
    rewards: NDArray[np.float32]  # [T]: the reward received with the observation
    facts: dict[str, NDArray[np.int64]]  # [T]: the environment's facts about the level and the step, by name
    complete: bool  # Whether the episode ended; otherwise, it was cut off
    trace: Trace  # Every step of the core


def record(actor: Actor, *, images: bool = True, most: int = MOST_STEPS) -> Recording:
    """Record the next episode of an actor's only environment.

    Args:
        actor: at the beginning of an episode, with an unroll length of 1.
        images: whether to record boards and views.
        most: steps after which the episode is cut off.
    """
    batch: Any = actor.batch
    spec = actor.agent.action_spec
    boards: list[Pixels] = []
    views: list[Pixels] = []
    steps: list[Any] = []  # Unrolls of one step
    facts: list[dict[str, Any]] = []
    over = False
    with recorded(actor.agent.core) as calls:
        while not over and len(steps) < most:
            if images and (board := rendered(batch, True)) is not None:
                boards.append(board)
            if images and getattr(batch, "draws_views", True) and (view := rendered(batch, False)) is not None:
                views.append(view)
            values = batch.facts() if hasattr(batch, "facts") else {}
            facts.append({name: series[0] for name, series in values.items()})
            steps.append(actor.unroll())
            # The action of the last step is ignored, and the board then is the next episode's.
            over = bool(steps[-1].env.terminated[0, 0] | steps[-1].env.truncated[0, 0])
    policies = [log_policy(spec, step.agent.logits[0, 0]) for step in steps]
    return Recording(
        boards,
        views,
        {} if views else stacked([named_arrays(step.env.observation) for step in steps]),
        np.stack([(policy if isinstance(spec, BoxSpec) else policy.exp()).numpy() for policy in policies]),
        np.stack([step.agent.action[0, 0].reshape(-1).numpy() for step in steps]),
        np.stack([step.agent.value[0, 0].numpy() for step in steps]),
        np.stack([step.env.reward[0, 0].numpy() for step in steps]),
        stacked(facts),
        over,
        over_time(calls, 0),
    )


def stacked(steps: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.stack([values[name] for values in steps]) for name in steps[0]}


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


class Mark(NamedTuple):
    """An event at a step."""

    step: int
    text: str


def marks(recording: Recording, values: dict[str, tuple[str, ...]]) -> list[Mark]:
    """Return every change of a mostly constant fact with named values, and every unusual reward."""
    result: list[Mark] = []
    for name, series in recording.facts.items():
        changes = np.flatnonzero(series[1:] != series[:-1]) + 1
        if values.get(name) and len(changes) <= len(series) // 2:  # an agent's position changes all the time
            result += [Mark(int(step), f"{name.replace('_', ' ')}: {values[name][series[step]]}") for step in changes]
    rewards = recording.rewards
    distance = np.abs(rewards - np.median(rewards))
    unusual = np.flatnonzero((distance > 0.1 * distance.max()) & (rewards != 0))
    if len(unusual) <= len(rewards) // 4:
        result += [Mark(int(step), f"reward {rewards[step]:+.3g}") for step in unusual if step]
    return sorted(result)
