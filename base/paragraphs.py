"""The description at the top of `--help`, broken into lines as wide as the terminal."""

import shutil
import textwrap


def wrapped(text: str) -> str:
    """Paragraphs as wide as the terminal, at most 100 columns; those in columns keep their lines.

    Every line begins with a space: tyro puts lines that begin with a letter behind one another.
    """
    width = min(100, shutil.get_terminal_size().columns) - 2
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        aligned = "  " in paragraph
        lines += ["", *(paragraph.splitlines() if aligned else textwrap.wrap(paragraph, width))]
    return "\n".join(line and f" {line}" for line in lines[1:])
