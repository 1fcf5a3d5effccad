"""Messages that the page of symptoms quotes are in the code, to the letter."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
OTHERS = ("rl-train: command not found",)
"""Messages that are not engram's."""


def texts() -> list[str]:
    """Strings of the package, joined as Python joins them, with an ellipsis for what is put in."""
    found: list[str] = []
    for folder in ("base", "envs", "agents", "actors", "learners", "launch", "api"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    found.append("".join(str(part) for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return [" ".join(text.split()) for text in found]


def is_said(message: str, said: list[str]) -> bool:
    """Whether the pieces of a message between ellipses stand in one text, or in texts that are put together."""
    pieces = [piece.strip(" ;:") for piece in message.split("…")]
    pieces = [piece for piece in pieces if len(piece) > 2]
    pattern = re.compile(".*".join(re.escape(piece) for piece in pieces))
    return any(pattern.search(text) for text in said) or all(any(piece in text for text in said) for piece in pieces)


def test_messages_are_those_of_the_code() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    quoted = [row[2].strip().strip("`") for row in rows if row[2].strip() not in ("", "message", "cause")]
    said = texts()
    assert len(quoted) > 40
    assert [message for message in quoted if message not in OTHERS and not is_said(message, said)] == []
    assert not is_said("actor … failed and is forgiven", said)
