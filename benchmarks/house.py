"""Count what a newcomer has to read: lines, modules on an unroll's way, hand-written gradients, files per folder.

    python benchmarks/house.py

One unroll's way is the modules of engram that a process holds after it has made BoxWorld and an RMC agent, fetched one
unroll from a Ray actor and taken its gradient; packages that hold nothing but a docstring are left out.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("base", "envs", "agents", "actors", "learners", "launch", "zoo")

JOURNEY = """
import sys, json
import ray, torch
from engram.actors.factory import ActorFactory
from engram.actors.remote.pool import RayPool
from engram.actors.remote.window import RequestWindow
from engram.agents.agent import AgentConfig
from engram.agents.weights import Weights, flatten
from engram.learners.config import LearnerConfig
from engram.learners.learner import Learner

factory = ActorFactory(env="boxworld", agent=AgentConfig(core="rmc"), num_envs=8, unroll_length=4, seed=0)
learner = Learner(factory.make_agent(factory.make_batch()), LearnerConfig(), 10**6)
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
pool = RayPool(factory.make_actor, 1, 1, window=RequestWindow(8, 1, 8, 1))
pool.publish(Weights(0, 0, flatten(learner.agent)))
while (unroll := pool.next()) is None:
    pass
learner.step(unroll)
pool.close()
found = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "engram"}
print(json.dumps(found))
"""


def lines(file: Path) -> int:
    """Lines of a file."""
    return len(file.read_text().splitlines())


def holds_code(file: Path) -> bool:
    """Whether there is more than a docstring in it."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def journey() -> dict[str, int]:
    """Lines of every module on one unroll's way, by its path."""
    done = subprocess.run([sys.executable, "-c", JOURNEY], stdout=subprocess.PIPE, text=True, check=True)
    files = [Path(file) for file in json.loads(done.stdout.splitlines()[-1]).values() if file]
    return {str(file.relative_to(ROOT)): lines(file) for file in sorted(files) if holds_code(file)}


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
    way = journey()
    launch = [folder for folder in (ROOT / "launch").iterdir() if folder.is_dir() and any(folder.glob("*.py"))]
    return {
        "library": {"files": len(files), "lines": sum(map(lines, files))},
        "one_unroll": {"modules": len(way), "lines": sum(way.values()), "files": way},
        "rmc_statement_lines": lines(ROOT / "agents/cores/rmc.py"),
        "gradients_outside_fast": gradients(),
        "modules_in_launch": {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in sorted(launch)},
    }


if __name__ == "__main__":
    print(json.dumps(count(), indent=1))
