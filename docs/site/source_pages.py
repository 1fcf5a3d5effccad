"""Files of the repository that pages link to, as pages of the site, so that it needs no other place to link to."""

import os
import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".sh": "bash", "": "text"}
PICTURES = (".gif", ".png", ".svg")
LONGEST = 60_000


def linked(root: Path) -> dict[str, str]:
    """The page of every file outside docs/ that a page of docs/ links to, or such a file links to in turn."""
    found: dict[str, str] = {}
    waiting = [path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")]
    while waiting:
        source = waiting.pop()
        for target in targets((root / source).read_text(), source):
            if target.startswith("docs/") or target in found or not (root / target).is_file():
                continue
            found[target] = page_of(target)
            if target.endswith(".md"):
                waiting.append(target)
    return found


def targets(text: str, source: str) -> list[str]:
    """Paths in the repository that a page's relative links lead to."""
    return [os.path.normpath(os.path.join(os.path.dirname(source), match[0])) for match in LINK.findall(text)]


def page_of(path: str) -> str:
    """Path below docs/ of the page that shows a file, or of the copy of an image."""
    return f"files/{path}" if path.endswith((".md", *PICTURES)) else f"files/{path}.md"


def page(root: Path, path: str, shown: dict[str, str]) -> str | bytes:
    """The page that shows a file of the repository; an image itself."""
    if path.endswith(PICTURES):
        return (root / path).read_bytes()
    text = (root / path).read_text()
    if path.endswith(".md"):
        return redirect(text, path, shown[path], shown)
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "\n..."
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{cut}\n````\n"


def redirect(text: str, source: str, at: str, shown: dict[str, str]) -> str:
    """The text of the file `source` for the page `at`, its relative links leading to where their targets are shown."""

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), match[1]))
        there = shown.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if there is None or (source.startswith("docs/") and target.startswith("docs/")):
            return match[0]
        return f"]({os.path.relpath(there, os.path.dirname(at))}{match[2] or ''})"

    return LINK.sub(link, text)
