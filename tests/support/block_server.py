"""A process that has imported everything and runs the blocks of pages in forks of itself, so that each starts at once.

It reads one JSON object per line from standard input, `{"page", "folder"}`, and answers each with the page's failures
and seconds. Python blocks of a page share one fork; every command has its own.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tyro
import yaml

from engram.launch.entry import module_of
from page_blocks import Block, blocks_of, command_lines, words_of

ROOT = Path(__file__).parents[2]
LIMIT_S = 180
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SMALL = {
    "rl-train": ["--local", "--total-steps", "600", "--envs-per-actor", "4", "--envs-per-update", "4"],
    "rl-eval": ["--episodes", "4"],
    "rl-probe": ["--updates", "2", "--test-sequences", "8"],
}
"""Flags that make a command of a page end within seconds."""
CHECKS: dict[str, Callable[[str], Any]] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}


class _Parsed(SystemExit):
    """Ends a command whose words were understood."""


def main() -> None:
    """Answer requests until standard input ends."""
    for name in SCRIPTS:
        importlib.import_module(module_of(name))
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        failures = run_page(Path(request["page"]), Path(request["folder"]))
        print(json.dumps({"failures": failures, "seconds": time.perf_counter() - started}), flush=True)


def run_page(page: Path, folder: Path) -> list[str]:
    """Run a page's blocks in order; returns what failed."""
    os.chdir(folder)
    ours, theirs = get_context("fork").Pipe()
    python = get_context("fork").Process(target=_serve_python, args=(theirs,))
    python.start()
    failures: list[str] = []
    printed = ""
    try:
        for block in blocks_of(page):
            if block.is_output:
                problem = "" if block.body == printed else f"printed is\n{printed}"
            elif block.language == "python":
                problem, printed = _python(block, ours)
            elif block.language == "bash":
                problem = "\n".join(filter(None, (_command(block, line) for line in command_lines(block.body))))
            else:
                problem = _data(block)
            if problem:
                failures.append(f"{page.name} line {block.line}: {problem}")
    finally:
        ours.close()
        python.kill()
        python.join()
    return failures


def _data(block: Block) -> str:
    if block.language not in (*CHECKS, "text"):
        return f"a block of {block.language or 'no language'}; allowed: bash, python, text, {', '.join(CHECKS)}"
    try:
        CHECKS.get(block.language, str)(block.body)
    except ValueError as problem:
        return str(problem)
    return ""


def _python(block: Block, to_child: Connection) -> tuple[str, str]:
    """A Python block's problem and what it prints; one with a title is a file and is only compiled."""
    if block.title or block.not_run is not None:
        compile(block.body, block.title or "block", "exec")
        if block.title:
            Path(block.title).write_text(block.body)
        return "", ""
    to_child.send(block.body)
    if not to_child.poll(LIMIT_S):
        return f"no end within {LIMIT_S} s", ""
    problem, printed = to_child.recv()
    return problem, printed


def _serve_python(theirs: Connection) -> None:
    """Run Python blocks in one namespace."""
    sys.path.insert(0, os.getcwd())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    while True:
        try:
            body = theirs.recv()
        except EOFError:
            return
        out, problem = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(body, "block", "exec"), namespace)
        except BaseException:
            problem = traceback.format_exc()
        theirs.send((problem, out.getvalue()))


def _command(block: Block, line: str) -> str:
    """Problem of one line of a shell block, empty if it did what it should."""
    words = words_of(line)
    if words is None:
        if block.not_run is not None:
            return ""
        done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return "" if done.returncode == 0 else f"$ {line}\n{done.stdout}{done.stderr}"
    name = Path(words[0]).name
    if name not in SCRIPTS:
        return f"no command {name}; there are: {', '.join(SCRIPTS)}"
    given = words[1:]
    if block.not_run is None:
        resumed = name == "rl-train" and ("--resume" in given or "--list" in given)
        given += block.added.get(name, [] if resumed or "--list" in given else SMALL.get(name, []))
    code, output = _in_fork(name, given, parse_only=block.not_run is not None)
    return "" if code == 0 else f"$ {name} {' '.join(given)}\nexit code {code}\n{output[-3000:]}"


def _in_fork(name: str, words: list[str], parse_only: bool) -> tuple[int, str]:
    """Exit code and output of a command that runs in a fork; `parse_only` ends it when its words are understood."""
    output = Path(f".output-{time.monotonic_ns()}")
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        os.setpgid(0, 0)
        file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for ours, theirs in ((null, 0), (file, 1), (file, 2)):
            os.dup2(ours, theirs)
        code = _run_command(name, words, parse_only)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    text = output.read_text(errors="replace")
    output.unlink()
    return os.waitstatus_to_exitcode(status), text


def _run_command(name: str, words: list[str], parse_only: bool) -> int:
    module, _, function = SCRIPTS[name].partition(":")
    sys.argv = [name, *words]
    real = tyro.cli

    def parse(*args: Any, **given: Any) -> Any:
        real(*args, **given)
        raise _Parsed(0)

    if parse_only:
        tyro.cli = parse  # type: ignore[assignment]
    try:
        getattr(importlib.import_module(module), function)()
    except _Parsed:
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
