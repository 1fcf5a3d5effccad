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
    observations: dict[str, NDArray[Any]]  # [T, ...]: each array of the observation, by name
    probabilities: NDArray[np.float32]
    """[T, A]: probability of every action (of every option of every choice); for a Box the parameters of its
    Gaussians."""
    actions: NDArray[Any]  # [T, K]: the actions, by choice
    values: NDArray[np.float32]  # [T]: the value estimates
    rewards: NDArray[np.float32]  # [T]: the reward received with the observation
    facts: dict[str, NDArray[np.int64]]  # [T]: the environment's facts about the level and the step, by name
    fields: dict[str, float]  # Fields at the end of the episode; empty if it was cut off
    trace: Trace  # Every step of the core


def record(actor: Actor, *, images: bool = True, most: int = MOST_STEPS) -> Recording:
    """Record the next episode of an actor's only environment.

    Args:
        actor: at the beginning of an episode, with an unroll length of 1.
        most: steps after which the episode is cut off.
    """
    batch: Any = actor.batch
    spec = actor.agent.action_spec
    boards: list[Pixels] = []
    views: list[Pixels] = []
    steps: list[Any] = []  # Unrolls of one step
    facts: list[dict[str, NDArray[np.int64]]] = []
    fields: dict[str, float] = {}
    with recorded(actor.agent.core) as calls:
        while len(steps) < most:
            if images and (board := rendered(batch, True)) is not None:
                boards.append(board)
            if images and getattr(batch, "draws_views", True) and (view := rendered(batch, False)) is not None:
                views.append(view)
            facts.append(batch.facts() if hasattr(batch, "facts") else {})
            unroll = actor.unroll()
            steps.append(unroll)
            for episode in unroll.episodes.numpy():
                named = zip(("return", "length", *batch.episode_fields), episode[1:].tolist(), strict=True)
                fields = {name: value for name, value in named if not np.isnan(value)}
            if bool(unroll.env.terminated[0, 0] | unroll.env.truncated[0, 0]):
                break  # the action of this step was ignored: the board is the next episode's
    policies = [log_policy(spec, unroll.agent.logits[0, 0]) for unroll in steps]
    observations = [named_arrays(unroll.env.observation) for unroll in steps]
    return Recording(
        boards,
        views,
        {name: np.stack([arrays[name] for arrays in observations]) for name in observations[0]},
        np.stack([(policy if isinstance(spec, BoxSpec) else policy.exp()).numpy() for policy in policies]),
        np.stack([unroll.agent.action[0, 0].reshape(-1).numpy() for unroll in steps]),
        np.stack([unroll.agent.value[0, 0].numpy() for unroll in steps]),
        np.stack([unroll.env.reward[0, 0].numpy() for unroll in steps]),
        {name: np.array([values[name][0] for values in facts]) for name in facts[0]},
        fields,
        over_time(calls, 0),
    )


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
    if not hasattr(batch, "draw"):
        return None
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
        if not values.get(name):
            continue
        changes = np.flatnonzero(series[1:] != series[:-1]) + 1
        if len(changes) > len(series) // 2:
            continue  # facts such as the agent's position change all the time
        for step in changes:
            result.append(Mark(int(step), f"{name.replace('_', ' ')}: {values[name][series[step]]}"))
    rewards = recording.rewards
    usual = float(np.median(rewards))
    large = np.abs(rewards - usual) > 0.1 * max(1e-9, float(np.abs(rewards - usual).max(initial=0.0)))
    large &= rewards != 0
    large[0] = False
    if np.count_nonzero(large) <= len(rewards) // 4:
        result += [Mark(int(step), f"reward {rewards[step]:+.3g}") for step in np.flatnonzero(large)]
    return sorted(result)
