"""Hooks of `mkdocs build`: generated parts of pages, pages of the API, and pages that show files outside docs/.

A page that has a generated part says so with a comment, such as `<!-- generated: commands -->`; on GitHub it shows the
text around it.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import api_pages
import code_width
import command_pages
import search_words
import setting_tables
import source_pages
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"<!-- generated: ([\w-]+) -->")
WIDE = re.compile(r"^\|(?:[^|\n]*\|){10}", re.MULTILINE)
"""A table of so many columns that it needs the place of the table of contents."""
PARTS: dict[str, Callable[[], str]] = {
    "commands": command_pages.commands,
    "settings": setting_tables.settings,
    "presets": setting_tables.presets,
    "api": api_pages.overview,
}
log = logging.getLogger("mkdocs.engram")
_shown: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Make what mkdocstrings reads: a package `engram` of links to the packages of the repository.

    A single link to the root would contain itself, by way of `build/`: the parser would follow it forty times.
    """
    folder = ROOT / "build" / "api" / "engram"
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for init in (ROOT / "__init__.py", *ROOT.glob("*/__init__.py")):
        target = init if init.parent == ROOT else init.parent
        if not (folder / target.name).exists():
            (folder / target.name).symlink_to(target)
    reference = next(entry["Reference"] for entry in config["nav"] if "Reference" in entry)
    api = next(entry for entry in reference if isinstance(entry, dict) and "API" in entry)
    api["API"] = ["reference/api.md", *({title: page} for title, page in api_pages.titles())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the API, and one for every file of the repository that a page links to."""
    for page, text in api_pages.pages().items():
        files.append(File.generated(config, page, content=text))
    _shown.update(source_pages.linked(ROOT))
    for path, page in _shown.items():
        file = File.generated(config, page, content=source_pages.page(ROOT, path, _shown))
        file.inclusion = file.inclusion.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the generated parts; links that leave docs/ go to the pages that show those files."""
    text = GENERATED.sub(lambda part: PARTS[part.group(1)](), markdown)
    if page.file.generated_by is None:
        text = source_pages.redirect(text, f"docs/{page.file.src_uri}", page.file.src_uri, _shown)
    if WIDE.search(text):
        page.meta.setdefault("hide", ["toc"])
    return code_width.wrapped(text)


def on_post_build(config: Any) -> None:
    """Add words to the search; warn, which fails a strict build, of public names without an entry."""
    for name in api_pages.missing(Path(config["site_dir"])):
        log.warning("no entry in the API reference: %s", name)
    for words in search_words.add_to(Path(config["site_dir"])):
        log.warning("words of the search lead nowhere: %s", words)
