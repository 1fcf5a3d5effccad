"""The generated parts of the reference name every command, every setting and every public name."""

import ast
import html
import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import markdown
import pytest

import engram
from engram.launch.config.command_line import flags_of
from engram.launch.config.run_config import RunConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def site_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))


def test_every_command_has_a_section() -> None:
    text = importlib.import_module("command_pages").commands()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert sorted(re.findall(r"^## (rl-[\w-]+)$", text, re.MULTILINE)) == sorted(scripts)
    assert "| `--episodes` `INT` | `1k` |" in text


def test_every_setting_has_a_line() -> None:
    tables = importlib.import_module("setting_tables")
    listed = set(re.findall(r"^\| `(--[\w.-]+)` \|", tables.settings(), re.MULTILINE))
    assert listed == {flag for flag in flags_of(RunConfig) if not flag.startswith("--no-")}
    assert "| `easy` | `boxworld` |" in tables.presets()


def test_every_folder_has_a_page() -> None:
    pages = importlib.import_module("api_pages").pages()
    assert "::: engram.agents.cores.rmc.RMC" in pages["reference/api/agents.cores.md"]
    assert "::: engram.learners.algorithms.vtrace.VTrace" in pages["reference/api/learners.algorithms.md"]


def test_commands_are_in_order_of_use_and_of_one_form() -> None:
    pages = importlib.import_module("command_pages")
    text = pages.commands()
    names = re.findall(r"^## (rl-[\w-]+)$", text, re.MULTILINE)
    assert names[:3] == ["rl-train", "rl-eval", "rl-look"]
    assert names == sorted(names, key=pages.ORDER.index)
    for part in text.split("\n## ")[1:]:
        name, summary, usage, *_ = part.split("\n\n")
        assert re.match(r"[A-Z].*\w", summary), name
        assert usage.startswith(f"```text\n{name} "), name
        assert "| argument | default | |" in part, name
        assert "--version prints" not in part, name


def test_the_page_of_the_package_itself_has_every_name() -> None:
    api = importlib.import_module("api_pages")
    page = api.pages()["reference/api/engram.md"]
    for name in engram.__all__:
        assert f"::: {api.home(name)}\n    options: {{heading: engram.{name}," in page
    assert api.titles()[0] == ("engram", "reference/api/engram.md")
    assert "`train`" in api.overview().splitlines()[2]


def test_internals_are_not_in_the_search() -> None:
    pages = importlib.import_module("api_pages").pages()
    searched = {page for page, text in pages.items() if "exclude: true" not in text}
    assert searched == {
        f"reference/api/{name}.md" for name in ("engram", "agents.cores", "learners", "learners.algorithms")
    }


@pytest.mark.parametrize("word", ["rollout", "vectorized", "seeds", "slurm", "onnx"])
def test_standard_words_lead_to_pages(word: str) -> None:
    words = importlib.import_module("search_words")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in ("results.md", "leaderboard.md")]
    index = {"docs": [{"title": path.stem, "text": path.read_text()} for path in pages]}
    assert words.add(index) == [], "every group of words leads somewhere"
    assert any(re.search(rf"\b{word}\b", entry["text"].split("<p>Also: ", 1)[-1]) for entry in index["docs"])


def test_text_of_docstrings_is_shown_whole() -> None:
    """A line that begins with a minus sign is a list for Markdown, and <words> are tags."""
    api = importlib.import_module("api_pages")
    modules = [module for each in api.folders().values() for module in each]
    for module in [ROOT / "__init__.py", *modules, *(ROOT / "launch" / "api").glob("*.py")]:
        for node in ast.walk(ast.parse(module.read_text())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                text = inspect.cleandoc(node.value.value)
                shown = html.unescape(re.sub(r"<[^>]+>", "", markdown.markdown(text)))
                lost = [sign for sign in "-*_+<>" if text.replace("`", "").count(sign) != shown.count(sign)]
                assert not lost, f"{module}:{node.lineno} loses {lost}: {text[:80]}"


def test_shell_blocks_fit_a_desktop_and_mean_the_same() -> None:
    width = importlib.import_module("code_width")
    block = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text()
        for before, after in zip(block.findall(text), block.findall(width.wrapped(text)), strict=True):
            assert max(map(len, after.splitlines())) <= width.WIDTH, f"{page}: {after}"
            words = [[word for word in shlex.split(each, comments=True) if word.strip()] for each in (before, after)]
            assert words[0] == words[1], f"{page}: {after}"
