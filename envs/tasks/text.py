"""Language modeling on the user's text files: predict the next word or character, with state carried across batches."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ...base.messages import check_choice, check_integer
from .task import PARTS
from .token_stream import Document, TokenStream, as_path, numbered, read_text

LEVELS = ("word", "character")
UNKNOWN, EOS = "<unk>", "<eos>"
HELD_OUT = 0.05  # Share of a single file that is kept for each of validation and test


def read_parts(path: str | Path) -> dict[str, str]:
    """The text of every part: a folder's files with train, valid and test in their names, or one file divided. Of one
    file the last two twentieths are for validation and test. Raises ValueError naming what is missing."""
    path = as_path("path", path)
    if path.is_dir():
        found: dict[str, str] = {}
        for part in PARTS:
            matches = sorted(file for file in path.iterdir() if part in file.name and file.is_file())
            if len(matches) != 1:
                raise ValueError(f"folder {str(path)!r} has {len(matches)} files with {part!r} in their name, not 1")
            found[part] = read_text(matches[0])
        return found
    text = read_text(path)
    ends = [0, *(round(len(text) * (1 - share * HELD_OUT)) for share in (2, 1, 0))]
    return {part: text[start:end] for part, start, end in zip(PARTS, ends, ends[1:], strict=False)}


def split(text: str, level: str) -> list[str]:
    """Characters, or words with EOS for every end of a line."""
    return list(text) if level == "character" else text.replace("\n", f" {EOS} ").split()


class Text(TokenStream):
    """Every token predicts the next. The text is cut into B equal stretches, one for each sequence, read in chunks.

    Args:
        num_sequences: B; of validation and test, which are read once, as many as they have tokens for if that is less.
        path: a text file, or a folder with one file each for train, valid and test.
        level: "word" or "character".
        chunk: steps of a batch.
        min_count: words or characters seen less often in training are `<unk>`.
    """

    def __init__(
        self,
        num_sequences: int,
        *,
        path: str,
        level: str = "character",
        chunk: int = 100,
        min_count: int = 1,
        **common: Any,
    ) -> None:
        check_choice("level", level, LEVELS)
        check_integer("min_count", min_count, 1)
        parts = read_parts(path)
        counts = Counter(split(parts["train"], level))
        vocabulary = [UNKNOWN, *sorted(token for token, count in counts.items() if count >= min_count)]
        numbers = {token: number for number, token in enumerate(vocabulary)}
        part = common.get("part", "train")
        tokens = numbered(split(parts[part], level), numbers, unknown=0)
        if part != "train":
            num_sequences = min(num_sequences, max(1, len(tokens) - 1))
        length = (len(tokens) - 1) // num_sequences
        if length < 1:
            enough = "at least 2" if part != "train" else f"more than batch_size, which is {num_sequences}"
            raise ValueError(f"{str(path)!r} has {len(tokens)} {level}s for {part}; allowed: {enough}")
        documents = [
            Document(
                tokens[b * length : (b + 1) * length],
                tokens[b * length + 1 : (b + 1) * length + 1],
                np.ones(length, np.bool_),
            )
            for b in range(num_sequences)
        ]
        super().__init__(num_sequences, documents, vocabulary, chunk=chunk, resets=False, **common)
        self.place[:] = np.arange(num_sequences)

    def _order(self, i: int) -> Any:
        """In training as well sequence b reads stretch b, again and again."""
        return np.arange(self.num_sequences)

    def _go_on(self, i: int) -> None:
        self.offset[i] = 0
        if self.part != "train":
            self.place[i] = len(self.documents)
