"""Streams of tokens read from files: every sequence of a batch reads its own documents, chunk by chunk."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...base.messages import check_integer
from ..arrays import Array
from .task import BLANK, NOT_ASKED, Batch, Task


class Document(NamedTuple):
    """A sequence of tokens, with a target for each."""

    tokens: Array  # int64 [L]
    targets: Array  # int64 [L]: classes, NOT_ASKED without a query
    scored: Array  # bool [L]


class TokenStream(Task):
    """Documents, one after the other, in chunks that end wherever they end.

    In training every sequence goes through all documents in an order of its own, resampled for every pass; in the
    other parts sequence b of B reads documents b, b + B, ..., once.

    Args:
        documents: of this part.
        vocabulary: tokens by their number.
        chunk: steps of a batch.
        resets: whether a document begins a new sequence for the memory.
    """

    symbols = True
    stream: ClassVar[bool] = True
    chance = 0.0

    def __init__(
        self,
        num_sequences: int,
        documents: Sequence[Document],
        vocabulary: Sequence[str],
        *,
        chunk: int,
        resets: bool,
        **common: Any,
    ) -> None:
        super().__init__(num_sequences, **common)
        check_integer("chunk", chunk, 1)
        self.documents, self.vocabulary, self.steps, self.resets = documents, tuple(vocabulary), chunk, resets
        self.inputs = self.classes = len(vocabulary)
        # In training place is that in the order of the present pass, which `random` stands for.
        self.place = np.arange(num_sequences) if self.part != "train" else np.zeros(num_sequences, np.int64)
        self.offset = np.zeros(num_sequences, np.int64)
        self._orders: dict[int, tuple[int, Array]] = {}
        if self.part != "train":
            sizes = [len(document.tokens) for document in documents]
            self.batches = -(-max(sum(sizes[b::num_sequences]) for b in range(num_sequences)) // chunk)

    def _state(self) -> dict[str, Array]:
        return {"random": self.random, "place": self.place, "offset": self.offset}

    def _fill(self, batch: Batch) -> None:
        for i in range(self.num_sequences):
            t = 0
            while t < self.steps:
                document = self._document(i)
                if document is None:
                    break
                begin = int(self.offset[i])
                end = min(begin + self.steps - t, len(document.tokens))
                span = slice(t, t + end - begin)
                batch.inputs[span, i] = document.tokens[begin:end]
                batch.targets[span, i, 0] = document.targets[begin:end]
                batch.scored[span, i] = document.scored[begin:end]
                batch.reset[t, i] |= begin == 0 and self.resets
                t, self.offset[i] = t + end - begin, end
                if end == len(document.tokens):
                    self._go_on(i)

    def _scored(self, batch: Batch) -> Array:
        return batch.scored

    def _document(self, i: int) -> Document | None:
        """The story that sequence i reads now; None if it has read all."""
        place = int(self.place[i])
        if self.part == "train":
            return self.documents[self._order(i)[place]]
        return self.documents[place] if place < len(self.documents) else None

    def _go_on(self, i: int) -> None:
        self.offset[i] = 0
        if self.part != "train":
            self.place[i] += self.num_sequences
        else:
            self.place[i] += 1
            if self.place[i] == len(self.documents):
                self.place[i] = 0
                self.random[i] += np.uint64(1)  # stands for the next pass

    def _order(self, i: int) -> Array:
        """The order of documents in sequence i's present pass, made from its stream."""
        key = int(self.random[i])
        if self._orders.get(i, (None,))[0] != key:
            self._orders[i] = key, np.random.default_rng(key).permutation(len(self.documents))
        return self._orders[i][1]


def numbered(tokens: Sequence[str], numbers: Mapping[str, int], unknown: int | None = None) -> Array:
    """Tokens as numbers: int64 [L]; without a number for unknown ones every token must have one."""
    if unknown is None:
        return np.array([numbers[token] for token in tokens], np.int64)
    return np.array([numbers.get(token, unknown) for token in tokens], np.int64)


def as_path(name: str, value: object) -> Path:
    """A parameter that names a file or folder. Raises ValueError naming it if it is no text."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} is {value!r}; allowed: the name of a file or folder (./{value} for one of this name)")
    return Path(value)


def read_text(path: Path) -> str:
    """A text file. Raises ValueError naming the file and what is wrong."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from problem


__all__ = ["BLANK", "NOT_ASKED", "Document", "TokenStream", "as_path", "numbered", "read_text"]
