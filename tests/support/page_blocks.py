"""Fenced blocks of a Markdown page, with what comments above them say about testing them.

<!-- not run: REASON -->              the commands of the next block are parsed and not run
<!-- test with: COMMAND FLAGS; ... --> flags that the test adds to a command of the next block
<!-- output -->                       the next block is what the Python block above it prints, to the letter
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)
_LAST_MARK = re.compile(
    r"<!-- (not run|test with|output|first command|test command)(?:: ((?:(?!-->).)*?))? -->\s*\Z", re.S
)


class Block(NamedTuple):
    """A fenced block."""

    line: int
    language: str
    title: str
    """Name of the file that the block is, or nothing."""
    body: str
    not_run: str | None
    added: dict[str, list[str]]
    """Flags that the test adds, by command."""
    is_output: bool


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        marks = _marks_before(text[: match.start()])
        added: dict[str, list[str]] = {}
        for part in filter(None, marks.get("test with", "").split(";")):
            command, *flags = shlex.split(part)
            added[command] = flags
        not_run = marks.get("not run")
        if "test command" in marks or "first command" in marks:
            not_run = "run by .ci/run and tests of their own"
        found.append(
            Block(
                line=text.count("\n", 0, match.start()) + 1,
                language=language,
                title=title[1] if title else "",
                body=re.sub(f"^{match['indent']}", "", match["body"], flags=re.M),
                not_run=not_run,
                added=added,
                is_output="output" in marks,
            )
        )
    return found


def _marks_before(text: str) -> dict[str, str]:
    """The comments that end a text, by what they begin with."""
    marks: dict[str, str] = {}
    while (found := _LAST_MARK.search(text[-600:])) is not None:
        marks[found[1]] = found[2] or ""
        text = text[: len(text) - len(found[0])]
    return marks


def command_lines(body: str) -> list[str]:
    """The commands of a shell block: continued lines are joined, comments left out."""
    joined = re.sub(r"\\\n\s*", " ", body)
    lines: list[str] = []
    for line in joined.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            lines.append(line)
    return lines


def words_of(line: str) -> list[str] | None:
    """The words of a command of ours, None for any other line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return None
    return words if words and re.fullmatch(r"(\S*/)?rl-[a-z-]+", words[0]) else None
