"""bAbI, question by question and as one stream of stories (catbAbI), from the user's own files.

The files are those of bAbI v1.2 (Weston et al. 2015), `en-valid-10k` with separate validation files, or `en-10k`;
engram does not include them. catbAbI: Schlag et al. 2021, section 4.1 and appendix D.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.messages import check_choice, check_flag
from .task import NOT_ASKED, PARTS
from .token_stream import Document, TokenStream, as_path, numbered, read_text

TASKS = 20
PAD, EOS, ANSWER = "<pad>", "<eos>", "<answer>"
MODES = ("qa", "lm")


class Line(NamedTuple):
    """A statement, or a question with its answer."""

    words: list[str]  # Lower case, "." or "?" last
    answer: str | None  # As it stands there, parts of a list joined by commas


Story = list[Line]


def read_stories(text: str, keep_last: bool = True) -> Iterator[Story]:
    """The stories of a file: they begin where lines are numbered 1. Line numbers and supporting facts are left out. The
    published counts of catbAbI are without the last story of every file (`keep_last` off)."""
    story: Story = []
    for row in filter(None, map(str.strip, text.splitlines())):
        number, _, rest = row.partition(" ")
        if not (number.isdigit() and rest):
            raise ValueError(
                f"not a line of bAbI: {row[:60]!r}; expected a number, a sentence, and tabs before an answer"
            )
        if number == "1" and story:
            yield story
            story = []
        sentence, *answer = rest.split("\t")
        words = re.findall(r"[\w'-]+|[.?]", sentence.lower())
        story.append(Line(words, answer[0].strip().lower() if answer else None))
    if story and keep_last:
        yield story


def files(folder: str | Path, part: str) -> list[Path]:
    """The 20 files of a part, in the order of the tasks. Raises ValueError naming what is missing."""
    folder = Path(folder)
    found: list[Path] = []
    for task in range(1, TASKS + 1):
        matches = sorted(folder.glob(f"qa{task}_*{part}.txt")) if folder.is_dir() else []
        if len(matches) != 1:
            state = "does not exist" if not folder.is_dir() else f"has {len(matches)} files qa{task}_*{part}.txt, not 1"
            raise ValueError(f"folder {str(folder)!r} {state}; expected bAbI's qa1_..qa20_ with {', '.join(PARTS)}")
        found += matches
    return found


def stories_of(folder: str | Path, part: str, keep_last: bool) -> list[Story]:
    """All stories of a part."""
    return [story for path in files(folder, part) for story in read_stories(read_text(path), keep_last)]


def _parts(folder: str | Path, keep_last: bool) -> dict[str, list[Story]]:
    """Stories of every part that is there; those of `en-10k` have no "valid"."""
    folder = as_path("folder", folder)
    parts = [part for part in PARTS if part != "valid" or any(folder.glob("qa1_*valid.txt"))]
    return {part: stories_of(folder, part, keep_last) for part in parts}


def _check_part(part: str, folder: str | Path, parts: dict[str, list[Story]]) -> None:
    if part not in parts:
        raise ValueError(f"part {part!r} is not in {str(folder)!r}; allowed: {', '.join(parts)}")


class CatBabi(TokenStream):
    """Stories of all 20 tasks in a row, questions and answers in them: after "?" comes the answer, one token.

    Every word predicts the next; "qa" mode asks at question marks only, "lm" mode at every word; the score is always
    about the answers. A story begins with `<eos>` and ends by predicting one. The state continues from story to story.

    Args:
        folder: of the files.
        mode: "qa" or "lm".
        chunk: steps of a batch.
        keep_last: also the last story of every file, which the published counts are without.
    """

    def __init__(
        self,
        num_sequences: int,
        *,
        folder: str,
        mode: str = "qa",
        chunk: int = 200,
        keep_last: bool = False,
        **common: Any,
    ) -> None:
        check_choice("mode", mode, MODES)
        check_flag("keep_last", keep_last)
        parts = _parts(folder, keep_last)
        part = common.get("part", "train")
        _check_part(part, folder, parts)
        words = {token for stories in parts.values() for story in stories for token in self.sample(story)}
        # The released vocabulary also holds the numbers of the tasks.
        vocabulary = [PAD, EOS, *map(str, range(1, TASKS + 1)), *sorted(words - {EOS})]
        numbers = {token: number for number, token in enumerate(vocabulary)}
        documents: list[Document] = []
        for story in parts[part]:
            tokens = numbered([*self.sample(story), EOS], numbers)
            asks = tokens[:-1] == numbers["?"]
            targets = np.where(asks | (mode == "lm"), tokens[1:], NOT_ASKED)
            documents.append(Document(tokens[:-1], targets, asks))
        super().__init__(num_sequences, documents, vocabulary, chunk=chunk, resets=False, **common)

    @staticmethod
    def sample(story: Story) -> list[str]:
        """`<eos>` and all words of a story, answers in their places."""
        return [EOS, *(word for line in story for word in ([*line.words, line.answer] if line.answer else line.words))]


class Babi(TokenStream):
    """A question after its story: statements, the question, then a placeholder for every word of the answer.

    Statements before the question, without earlier questions; the memory starts afresh with every question.

    Args:
        folder: of the files.
        tasks: their numbers; none for all.
        chunk: steps of a batch.
    """

    def __init__(self, num_sequences: int, *, folder: str, tasks: Any = (), chunk: int = 200, **common: Any) -> None:
        chosen = [tasks] if isinstance(tasks, int) else list(tasks) or list(range(1, TASKS + 1))
        for number in chosen:
            if number not in range(1, TASKS + 1):
                raise ValueError(f"tasks contains {number!r}; allowed: 1..{TASKS}")
        part = common.get("part", "train")
        every = _parts(folder, keep_last=True)
        _check_part(part, folder, every)
        words = {
            word for stories in every.values() for story in stories for line in story for word in self._words(line)
        }
        vocabulary = [ANSWER, *sorted(words)]
        numbers = {token: number for number, token in enumerate(vocabulary)}
        documents: list[Document] = []
        for path in (path for number, path in enumerate(files(folder, part), 1) if number in chosen):
            for story in read_stories(read_text(path)):
                documents += self._questions(story, numbers)
        super().__init__(num_sequences, documents, vocabulary, chunk=chunk, resets=True, **common)

    @staticmethod
    def _words(line: Line) -> list[str]:
        return [*line.words, *(line.answer.split(",") if line.answer else [])]

    @staticmethod
    def _questions(story: Story, numbers: dict[str, int]) -> Iterator[Document]:
        told: list[str] = []
        for line in story:
            if line.answer is None:
                told += line.words
                continue
            answer = line.answer.split(",")
            tokens = numbered([*told, *line.words, *[ANSWER] * len(answer)], numbers)
            targets = np.full(len(tokens), NOT_ASKED)
            targets[-len(answer) :] = numbered(answer, numbers)
            yield Document(tokens, targets, targets != NOT_ASKED)
