"""The contract of a batch of environments: what actors call, whether the batch is compiled or foreign."""

from typing import Any, Protocol

from gymnasium import spaces

from .arrays import Array


class BatchedEnvironment(Protocol):
    """N environments with NEXT_STEP autoreset, which write into arrays of the caller."""

    num_envs: int
    trusted: bool  # Whether `restore` may run code from a saved state

    @property
    def single_observation_space(self) -> spaces.Space[Any]:
        """The observations of one environment: a Box or a (nested) Dict of them."""
        ...

    @property
    def single_action_space(self) -> spaces.Space[Any]:
        """The actions of one environment: Discrete, MultiDiscrete or Box."""
        ...

    @property
    def episode_fields(self) -> tuple[str, ...]:
        """Names of the values of `episode_facts`."""
        ...

    @property
    def action_mask(self) -> Array | None:
        """bool [N, A]: the valid actions of the current step; None for an environment without masks."""
        ...

    @property
    def replayable(self) -> bool:
        """Whether a level depends only on `streams`: see ReplayableEnvironment."""
        ...

    def new_observation(self) -> Any:
        """Zeroed arrays for the observations of all environments: one [N, ...], or a (nested) dict of them."""
        ...

    def reset_into(self, observation: Any, seed: int | None = None) -> None:
        """Start an episode in every environment and write all observations [N, ...]."""
        ...

    def step_into(self, actions: Array, observation: Any, reward: Array, terminated: Array, truncated: Array) -> None:
        """Step all environments with actions [N, ...]. Writes observations [N, ...], reward float32 [N], terminated and
        truncated bool [N]."""
        ...

    def cut(self, where: Array) -> None:
        """End the episodes of environments `where` (bool [N]) here: their next step begins new ones."""
        ...

    def episode_facts(self, indices: Array) -> Array:
        """float32 [K, len(episode_fields)] of K environments whose episode has just ended; nan if unknown."""
        ...

    def save(self) -> dict[str, Array]:
        """The exact state. Raises ValueError if there is none."""
        ...

    def restore(self, saved: dict[str, Array]) -> None:
        """Continue from a state made by `save`."""
        ...

    def close(self) -> None:
        """Close all environments."""
        ...


class ReplayableEnvironment(BatchedEnvironment, Protocol):
    """Environments whose levels depend on random streams that can be set."""

    @property
    def streams(self) -> Array:
        """uint64 [N]: the random number generator of each environment, to be read and written."""
        ...
