"""Every block of every page does what the page says: commands end well, Python runs, data can be read.

The run directory RUN of a page is made here, a population where a comment on the page says that it is one.
What cannot be run says why, in a comment above it, and its commands are parsed.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "support" / "block_server.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL_MAZE = "difficulty=0 half_width=5 limbo_time=10 teleport_delay=1 timeout_frames=120"
RUNS = {
    "run": "--total-steps 2000",
    "population": "--total-steps 1500 --population 2 --pbt.explore 'learner.lr=loguniform(1e-4,1e-3)'",
}
"""Run directories that pages speak of, and flags of theirs."""


class Server:
    """The process that runs blocks."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, page: Path, folder: Path) -> list[str]:
        """Failures of a page."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"page": str(page), "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["failures"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    process = Server()
    yield process
    process.close()


@pytest.fixture(scope="module")
def runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run directories."""
    folder = tmp_path_factory.mktemp("runs")
    flags = f"--local --envs-per-actor 4 --envs-per-update 4 --unroll-length 20 --log-every 500 --env-args {SMALL_MAZE}"
    lines = [f"rl-train --env t-maze --core concrete {flags} --run-dir {name} {own}" for name, own in RUNS.items()]
    page = folder / "runs.md"
    page.write_text("<!-- test with: rl-train --seed 2 -->\n```bash\n" + "\n".join(lines) + "\n```\n")
    assert server.run(page, folder) == []
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_a_page(page: Path, server: Server, runs: Path, tmp_path: Path) -> None:
    text = page.read_text()
    if re.search(r"\bRUN\b", text):
        shutil.copytree(runs / ("population" if "<!-- RUN is a population -->" in text else "run"), tmp_path / "RUN")
    failures = server.run(page, tmp_path)
    assert not failures, "\n\n".join(failures)


WRONG = """```python
undefined
```
```bash
rl-train --corr lstm
```
```bash
false
```
```toml
= 1
```
```
no language
```
<!-- not run: takes hours -->
```bash
rl-eval RUN --episode 3
```
```python
print(1)
```
<!-- output -->
```text
2
```
"""


def test_wrong_blocks_are_noticed(server: Server, tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text(WRONG)
    lines = [int(failure.partition("line ")[2].partition(":")[0]) for failure in server.run(page, tmp_path)]
    assert lines == [1, 4, 7, 10, 13, 17, 24]
