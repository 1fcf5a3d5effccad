"""Encode each distinct observation only once: in grid environments, nine out of ten of an unroll are repeats.

Compiled code finds them at a hundredth of the torso's cost. Results differ from those of the full batch only by
rounding. The torso encodes all observations if few are repeats, if they are not on the CPU, without compiled code, or
if it has hooks.
"""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..base.compiled import compiled
from .cores.core import altered
from .cores.fast.routes import suits
from .values import ObservationTensor, map_leaves

Bytes: TypeAlias = NDArray[np.uint8]
Indices: TypeAlias = NDArray[np.int64]

FEW = 64  # Number of observations below which a batch is not searched
MOST_DISTINCT = 0.6  # Share of distinct observations up to which a search is worthwhile
MOST_CACHED, MOST_BYTES = 2**14, 2**26  # Limits of the cache while acting: observations and bytes


def once_each(torso: nn.Module, observation: ObservationTensor) -> Tensor:
    """Compute torso(observation) [N, F], once for each distinct observation of the batch."""
    rows = _rows(observation) if _allowed(torso) else None
    if rows is None or len(rows) < FEW:
        return torso(observation)
    index, fresh = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    count = int(look_up(rows, _factors(rows.shape[1]), _table(len(rows)), np.empty_like(rows), 0, index, fresh))
    if count > MOST_DISTINCT * len(rows):
        return torso(observation)
    chosen = torch.from_numpy(fresh[:count])
    features: Tensor = torso(map_leaves(lambda x: x[chosen], observation))
    return functional.embedding(torch.from_numpy(index), features)


class TorsoCache:
    """Cache the features [N, F] of a torso with constant weights and hooks; call `forget` after each change."""

    def __init__(self, torso: nn.Module) -> None:
        self._torso = torso
        self._stored, self._table = np.empty((0, 0), np.uint8), _table(0)  # observations, and where each is stored
        self._features = torch.empty(0)
        self.forget()

    def forget(self) -> None:
        """Clear the cache after a change of weights, or to make results independent of earlier steps."""
        self._requested, self._count, self._allowed = 0, 0, _allowed(self._torso)
        self._table.fill(-1)

    @torch.inference_mode()
    def __call__(self, observation: ObservationTensor) -> Tensor:
        mostly_new = self._requested >= 8 * FEW and self._count > MOST_DISTINCT * self._requested
        rows = _rows(observation) if self._allowed and not mostly_new else None
        if rows is None:
            return self._torso(observation)
        if self._stored.shape[1] != rows.shape[1]:
            room = min(MOST_BYTES // max(rows.shape[1], 1), MOST_CACHED)
            self._stored, self._table = np.empty((room, rows.shape[1]), np.uint8), _table(room)
            self._hashing = _factors(rows.shape[1])
        if len(rows) > len(self._stored):
            return self._torso(observation)
        if self._count + len(rows) > len(self._stored):
            self.forget()
        index, fresh, before = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), self._count
        self._count = int(look_up(rows, self._hashing, self._table, self._stored, before, index, fresh))
        self._requested += len(rows)
        if self._count > before:
            chosen = torch.from_numpy(fresh[: self._count - before])
            features: Tensor = self._torso(map_leaves(lambda x: x[chosen], observation))
            shape = (len(self._stored), *features.shape[1:])
            if self._features.shape != shape:
                self._features = features.new_empty(shape)
            self._features[before : self._count] = features
        return self._features[torch.from_numpy(index)]


def _allowed(torso: nn.Module) -> bool:
    """Whether a torso may be called on distinct observations only, and has weights (otherwise, its calls are cheap)."""
    weight = next(torso.parameters(), None)
    return weight is not None and suits(weight) and not altered(torso)


def _rows(observation: ObservationTensor) -> Bytes | None:
    """Return the bytes [N, K] of N observations; None if they are not on the CPU or need gradients."""
    leaves: list[Tensor] = []
    map_leaves(leaves.append, observation)
    if any(leaf.device.type != "cpu" or leaf.requires_grad for leaf in leaves):
        return None
    parts = [leaf.reshape(len(leaf), -1).contiguous().numpy().view(np.uint8) for leaf in leaves]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _table(room: int) -> Indices:
    """Create an empty hash table of indices; its length is a power of 2, at least twice `room`."""
    return np.full(1 << (2 * max(room, 1)).bit_length(), -1, np.int64)


def _factors(size: int) -> NDArray[np.uint32]:
    """Return fixed odd numbers, one for each byte of an observation."""
    return np.random.default_rng(size).integers(0, 2**31, size, np.uint32) * np.uint32(2) + np.uint32(1)


@compiled(inline=True)
def _same(a: Bytes, b: Bytes) -> bool:
    """Whether two observations are equal in all bytes, without a branch per byte."""
    differ = np.uint8(0)
    for k in range(len(a)):
        differ |= a[k] ^ b[k]
    return differ == 0


@compiled()
def look_up(
    rows: Bytes, factors: NDArray[np.uint32], table: Indices, stored: Bytes, count: int, index: Indices, fresh: Indices
) -> int:
    """Write each row's index in `stored` to `index` [N]; append new rows, and write their row indices to `fresh`.

    The hash is sum_k byte_k factor_k modulo 2^32; its high bits are mixed into the low bits, which select the entry.
    """
    size, mask = count, len(table) - 1
    for i in range(len(rows)):
        total, row = np.uint32(0), rows[i]
        for k in range(len(row)):
            total += np.uint32(row[k]) * factors[k]
        entry = int(total ^ (total >> np.uint32(15))) & mask
        while table[entry] >= 0 and not _same(stored[table[entry]], rows[i]):
            entry = (entry + 1) & mask
        if table[entry] < 0:
            table[entry] = size
            fresh[size - count] = i
            for k in range(rows.shape[1]):
                stored[size, k] = rows[i, k]
            size += 1
        index[i] = table[entry]
    return size
