"""Links between pages, from pages to files, and from code to pages lead somewhere."""

import os
import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "zoo", ".github")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found: list[str] = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = page if not path else Path(os.path.normpath(page.parent / path))
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "here.md").write_text("# Here it is\n[a](there.md) [b](#here-it-is) [c](#gone) [d](https://x.org)")
    assert broken(tmp_path / "here.md") == ["there.md", "#gone"]


def test_pages_that_code_names_are_there() -> None:
    named: dict[str, set[str]] = {}
    for folder in ("base", "envs", "agents", "actors", "learners", "api", "launch", "zoo", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".toml", ".yaml"):
                for page in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text()):
                    named.setdefault(page, set()).add(path.relative_to(ROOT).as_posix())
    assert {page: sorted(files) for page, files in named.items() if not (ROOT / page).exists()} == {}


def test_every_page_is_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text().replace("!!python", "python"))

    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(parts, list) or hasattr(parts, "__iter__")
        return [page for part in parts for page in pages(part)]  # pyright: ignore[reportGeneralTypeIssues]

    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert set(pages(site["nav"])) == there


def test_links_of_the_readme_work_on_a_package_index() -> None:
    absolute = runpy.run_path(str(ROOT / "docs" / "site" / "absolute_links.py"))["absolute"]
    text = absolute((ROOT / "README.md").read_text(), "https://example.org/engram", "v1")
    links = LINK.findall(FENCED.sub("", text))
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert "![An agent" in text
    assert "https://example.org/engram/raw/v1/docs/images/boxworld-agent.gif" in links
    assert absolute("[a](#b) [c](https://d.org/e)", "https://x", "v1") == "[a](#b) [c](https://d.org/e)"
