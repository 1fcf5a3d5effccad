"""Sources of unrolls: the interface of pools of actors.

The learner requests unrolls; actors produce the next ones only while it processes a batch. This bounds memory use, and
it bounds policy lag to `max_lag` updates, for any number of actors and environments.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ..agents.values import Weights
from .unroll import Unroll


class ActorStateError(RuntimeError):
    """Raised when the actors' state cannot be saved; training can continue without it."""


class ActorFailureError(RuntimeError):
    """Raised when an actor fails too often or its environment breaks the contract; the message contains the cause."""


class TransportDiedError(RuntimeError):
    """Raised when a Ray process that transports requests and unrolls has died; the message names it."""


class ActorPool(Protocol):
    """Set of actors that return unrolls, shared by all members of a population."""

    device: torch.device  # Of this process, used by actors; the CPU if they are in other processes
    still: AbstractContextManager[object]  # Context in which no actor uses this process's device

    @property
    def num_actors(self) -> int: ...  # Active actors

    @property
    def failures(self) -> int: ...  # Actors that failed and were replaced

    @property
    def progress(self) -> int: ...  # Changes while any environment steps, even within an unroll

    @property
    def gathering(self) -> bool: ...  # Whether a `gather` is in progress, during which the state cannot be saved

    def stored_bytes(self) -> int | None:
        """Measured bytes of unrolls and weights in object stores; None if unavailable."""

    def publish(self, weights: Weights, learned: int = 0) -> None:
        """Set the newest weights of a member, which result from an update on `learned` environments."""

    def retire(self, member: int) -> None:
        """Request no more unrolls of `member`; those in progress still arrive."""

    def next(self) -> Unroll | None:
        """Return the next unroll of any member; members take turns. Returns None if none arrives for a while, so that
        the caller can check signals and the clock."""

    def arrived(self) -> Unroll | None:
        """Return the next unroll of any member if it has already arrived, else None; call `next` first."""
        return None

    def gather(self, member: int = 0) -> list[Unroll] | None:
        """Return one unroll of every actor, in order, all made with the member's newest weights (synchronous mode).
        Returns None if some are missing after a while; the next call, for the same member, keeps those that arrived."""

    def save(self) -> list[Any]:
        """Return the exact state of every actor between two `gather`s. Raises ActorStateError if it is unavailable."""
        ...

    def restore(self, saved: list[Any]) -> None:
        """Continue from a state returned by `save` of a pool of the same size."""

    def close(self) -> None:
        """Stop all actors."""
