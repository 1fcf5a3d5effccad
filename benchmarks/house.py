"""Count what a newcomer has to read: lines, modules on an unroll's path, hand-written gradients, files per folder.

    python benchmarks/house.py [--write] [--as NAME]

Prints the counts; with --write they go into results/house.json, under "counts" or the given name, next to the speeds of
before_and_after.py.

An unroll's path from the environment to the weights is counted in two real runs of BoxWorld with V-trace: `statement`
is an LSTM with `ENGRAM_COMPILED=0` and `--local`, `ray` a compiled RMC with one Ray actor. During the trainer's second
update, every engram module with a function that runs is recorded, in both processes. Compiled functions, which cannot
be traced, count where they are called in that run, with everything that they inline. What runs before (construction,
registration, checks of the configuration) is not on the path. The looser count, `imported`, is every module that the
learner's process has imported by then.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from before_and_after import keep

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("base", "envs", "agents", "actors", "learners", "launch", "zoo")

JOURNEY = r"""
import sys, json, tempfile
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

TRACE = r'''
import sys
def trace(begin):
    seen, on = {}, []
    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if file.endswith(begin[0]) and frame.f_code.co_name == begin[1]:
            on.append(1)
        if on:
            seen[file] = None
    sys.setprofile(note)
    return seen

def compiled():
    import gc
    from numba.core.registry import CPUDispatcher
    found = {}
    waiting = [each for each in gc.get_objects() if isinstance(each, CPUDispatcher) and each.overloads]
    while waiting:
        function = waiting.pop().py_func
        if function not in found:
            found[function] = function.__code__.co_filename
            inner = (function.__globals__.get(name) for name in function.__code__.co_names)
            waiting += [each for each in inner if isinstance(each, CPUDispatcher)]
    return list(found.values())
'''
exec(TRACE)

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.launch.api.training import make_learners, make_panel, make_trainer
from engram.launch.config.run_config import RunConfig
from engram.launch.config.plain import to_dict
from engram.launch.runs.directory import RunDirectory
from engram.launch.train.acting import make_pool

NOTES, KIND = sys.argv[1:]


class Traced(ActorFactory):
    def make_actor(self, *arguments, **options):
        names = {}
        exec(TRACE, names)
        actor = super().make_actor(*arguments, **options)
        unroll = actor.unroll
        seen = names["trace"](("actors/actor.py", "unroll"))

        def noting(*arguments, **options):
            result = unroll(*arguments, **options)
            Path(NOTES, "actor").write_text(json.dumps([*seen, *names["compiled"]()]))
            return result

        actor.unroll = noting
        return actor


local, core = KIND == "statement", "lstm" if KIND == "statement" else "rmc"
config = RunConfig(
    env="boxworld", agent=AgentConfig(core=core), local=local, num_actors=1, envs_per_actor=8, envs_per_update=8,
    unroll_length=4,
)
factory = config.factory()
if not local:
    factory = Traced(**{each.name: getattr(factory, each.name) for each in fields(factory)})
with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
    batch = factory.make_batch(num_envs=1)
    pool = make_pool(config, factory, print)
    files.callback(pool.close)
    directory = files.enter_context(RunDirectory.create(folder + "/run", to_dict(config), name="run"))
    panel, learners = make_panel(config, None, 0), make_learners(config, [factory.make_agent(batch)])
    trainer = make_trainer(config, learners, tuple(batch.episode_fields), pool, directory, panel, None, files)
    pool.publish(trainer.members[0].weights(pool))

    def update(count):
        while trainer.members[0].updates < count:
            trainer.update()

    update(1)
    seen = trace(("launch/train/trainer.py", "update"))
    update(2)
    sys.setprofile(None)
    imported = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "engram"]
    if not local:
        update(3)  # what the actor does behind an unroll is noted with its next one
print(json.dumps({"run": [*seen, *compiled()], "imported": imported}))
"""


def lines(file: Path) -> int:
    """Count the lines of a file."""
    return len(file.read_text().splitlines())


def holds_code(file: Path) -> bool:
    """Whether a file contains more than a docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def journey(kind: str) -> dict[str, Any]:
    """Count the modules on an unroll's path, `statement` or `ray`, with the lines of each, and all imported modules."""
    switch = {"ENGRAM_COMPILED": "0" if kind == "statement" else "1"}
    with tempfile.TemporaryDirectory() as notes:
        done = subprocess.run(
            [sys.executable, "-c", JOURNEY, notes, kind],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | switch,
        )
        result = json.loads(done.stdout.splitlines()[-1])
        actor = Path(notes, "actor")
        way = ours({*result["run"], *(json.loads(actor.read_text()) if actor.exists() else ())})
    imported = ours(set(result["imported"]))
    return {
        "modules": len(way),
        "lines": sum(way.values()),
        "files": way,
        "imported": {"modules": len(imported), "lines": sum(imported.values())},
    }


def ours(names: set[str]) -> dict[str, int]:
    """Return the lines of those of the files that are engram's and contain code."""
    files = [Path(name).relative_to(ROOT) for name in names if name and Path(name).is_relative_to(ROOT)]
    code = [file for file in sorted(files) if file.parts[0] in FOLDERS and holds_code(ROOT / file)]
    return {str(file): lines(ROOT / file) for file in code}


def gradients() -> list[str]:
    """Hand-written gradients outside agents/cores/fast/: classes that derive from torch.autograd.Function."""
    classes: list[str] = []
    for file in sorted((ROOT / "agents").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any("Function" in ast.unparse(base) for base in node.bases):
                classes.append(f"{file.relative_to(ROOT)}:{node.name}")
    return [name for name in classes if "/fast/" not in name]


def count() -> dict[str, Any]:
    """Return all counts."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    launch = [folder for folder in (ROOT / "launch").iterdir() if folder.is_dir() and any(folder.glob("*.py"))]
    return {
        "library": {"files": len(files), "lines": sum(map(lines, files))},
        "one_unroll": {kind: journey(kind) for kind in ("statement", "ray")},
        "rmc_statement_lines": lines(ROOT / "agents/cores/rmc.py"),
        "gradients_outside_fast": gradients(),
        "modules_in_launch": {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in sorted(launch)},
    }


if __name__ == "__main__":
    counts = count()
    print(json.dumps(counts, indent=1))
    if "--write" in sys.argv:
        keep(sys.argv[sys.argv.index("--as") + 1] if "--as" in sys.argv else "counts", counts)
