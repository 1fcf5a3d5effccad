"""Count what a newcomer has to read: lines, modules on an unroll's way, hand-written gradients, files per folder.

    python benchmarks/house.py [--write]

prints the counts; with --write they go into results/house.json, beside the speeds of before_and_after.py.

One unroll's way is counted in a real run: BoxWorld, an RMC agent, V-trace, a Ray actor. While an actor steps, sends an
unroll, and the learner takes it and makes an update, both processes note every module of engram of which a function
runs. Compiled functions, which leave no trace, count where they were called in that run, with all that they inline.
What runs before the first step (construction, registration, checks of configuration) is not on the way. Beside it
stands the looser count: every module that the learner's process has imported by then.
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from before_and_after import keep

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("base", "envs", "agents", "actors", "learners", "launch", "zoo")

JOURNEY = r"""
import sys, json
from pathlib import Path

TRACE = r'''
import sys
def trace(folder, begin):
    seen, on = {}, []
    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if (file.endswith(begin[0]) and frame.f_code.co_name == begin[1]):
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

import ray, torch
from engram.actors.factory import ActorFactory
from engram.actors.remote.pool import RayPool
from engram.actors.remote.window import RequestWindow
from engram.agents.agent import AgentConfig
from engram.agents.values import Weights, flatten
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

NOTES = sys.argv[1]
factory = ActorFactory(env="boxworld", agent=AgentConfig(core="rmc"), num_envs=8, unroll_length=4, seed=0)


def make_actor(*arguments, **options):
    names = {}
    exec(TRACE, names)
    actor = factory.make_actor(*arguments, **options)
    seen = names["trace"](NOTES, ("actors/actor.py", "unroll"))
    unroll = actor.unroll

    def noting(*arguments, **options):
        result = unroll(*arguments, **options)
        Path(NOTES, "actor").write_text(json.dumps([*seen, *names["compiled"]()]))
        return result

    actor.unroll = noting
    return actor


learner = Learner(factory.make_agent(factory.make_batch()), LearnerConfig(), 10**6)
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
pool = RayPool(make_actor, 1, 1, window=RequestWindow(8, 1, 8, 1))
pool.publish(Weights(0, 0, flatten(learner.agent)))
seen = trace(NOTES, ("actors/remote/pool.py", "next"))
for _ in range(2):  # what the actor does behind its first unroll is noted with its second
    while (unroll := pool.next()) is None:
        pass
learner.step(unroll)
pool.publish(Weights(learner.updates, 0, flatten(learner.agent)))
sys.setprofile(None)
imported = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "engram"]
pool.close()
print(json.dumps({"run": [*seen, *compiled()], "imported": imported}))
"""


def lines(file: Path) -> int:
    """Lines of a file."""
    return len(file.read_text().splitlines())


def holds_code(file: Path) -> bool:
    """Whether there is more than a docstring in it."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def journey() -> tuple[dict[str, int], dict[str, int]]:
    """Lines of every module on one unroll's way, by its path; and of every module that is imported then."""
    with tempfile.TemporaryDirectory() as notes:
        done = subprocess.run([sys.executable, "-c", JOURNEY, notes], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        run = {*found["run"], *json.loads(Path(notes, "actor").read_text())}
    return ours(run), ours(set(found["imported"]))


def ours(names: set[str]) -> dict[str, int]:
    """Lines of those of some files that are engram's and hold code."""
    files = [Path(name).relative_to(ROOT) for name in names if name and Path(name).is_relative_to(ROOT)]
    own = [file for file in sorted(files) if file.parts[0] in FOLDERS and holds_code(ROOT / file)]
    return {str(file): lines(ROOT / file) for file in own}


def gradients() -> list[str]:
    """Hand-written gradients outside agents/cores/fast/: classes that derive from torch.autograd.Function."""
    found: list[str] = []
    for file in sorted((ROOT / "agents").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any("Function" in ast.unparse(base) for base in node.bases):
                found.append(f"{file.relative_to(ROOT)}:{node.name}")
    return [name for name in found if "/fast/" not in name]


def count() -> dict[str, Any]:
    """Everything that is counted."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    way, imported = journey()
    launch = [folder for folder in (ROOT / "launch").iterdir() if folder.is_dir() and any(folder.glob("*.py"))]
    return {
        "library": {"files": len(files), "lines": sum(map(lines, files))},
        "one_unroll": {"modules": len(way), "lines": sum(way.values()), "files": way},
        "imported": {"modules": len(imported), "lines": sum(imported.values())},
        "rmc_statement_lines": lines(ROOT / "agents/cores/rmc.py"),
        "gradients_outside_fast": gradients(),
        "modules_in_launch": {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in sorted(launch)},
    }


if __name__ == "__main__":
    counts = count()
    print(json.dumps(counts, indent=1))
    if "--write" in sys.argv:
        keep("counts", counts)
