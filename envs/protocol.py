"""The interface of a batch of environments, compiled or third-party, that actors use."""

from typing import Any, Protocol

from gymnasium import spaces

from .arrays import Array


class BatchedEnvironment(Protocol):
    """N environments with NEXT_STEP autoreset, which write into the caller's arrays."""

    num_envs: int
    single_observation_space: spaces.Space[Any]  # A Box or a (nested) Dict of Boxes
    single_action_space: spaces.Space[Any]  # Discrete, MultiDiscrete or Box
    episode_fields: tuple[str, ...]  # Names of the values of `episode_facts`
    action_mask: Array | None  # bool [N, A]: the valid actions of the current step; None without masks
    replayable: bool  # Whether a level depends only on `streams`: uint64 [N], states of random number generators
    trusted: bool  # Whether `restore` may run code from a saved state

    def new_observation(self) -> Any:
        """Allocate zeroed observations of all environments: one array [N, ...], or a (nested) dict of arrays."""
        ...

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        """Start an episode in every environment and write all observations [N, ...]."""

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all environments with actions [N, ...]; write observations [N, ...], reward float32 [N], terminated and
        truncated bool [N]."""

    def cut(self, where: Array) -> None:
        """End the current episodes of environments `where` (bool [N]); their next step begins new ones."""

    def episode_facts(self, indices: Array) -> Array:
        """Return float32 [K, len(episode_fields)] for K environments whose episode has just ended; nan if unknown."""
        ...

    def save(self) -> dict[str, Array]:
        """Return the exact state. Raises ValueError if it cannot be saved."""
        ...

    def restore(self, saved: dict[str, Array]) -> None:
        """Continue from a state returned by `save`."""

    def close(self) -> None:
        """Close all environments."""
