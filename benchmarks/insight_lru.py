"""Why freezing LRU's states costs so much: they stop rotating. The solved rate if they are rotated or faded afterward.

    python benchmarks/insight_lru.py [--episodes 512]

Freezes the memory of zoo:t-maze-lru from step 30 to 80 and multiplies its states before step 80 by the factor of these
steps: lambda^50 (both), only its phase (turned) or only its absolute value (faded).
Writes results/insight-t-maze-lru-turned.json.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from engram.agents.agent import AgentState
from engram.agents.cores.linear.elementwise import LRU, Block
from engram.agents.process import prepare_process
from engram.base.files import replace_file
from engram.launch.evaluate.episodes import rate_interval
from engram.launch.evaluate.studies import Flags, Interference, parsed, play_first
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.trained import make_actor, open_run

RESULT = Path(__file__).parent / "results" / "insight-t-maze-lru-turned.json"
FROM, TO = 30, 80


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=512)
    options = parser.parse_args()
    prepare_process(1)
    trained = open_run("zoo:t-maze-lru", "latest")
    results = {**provenance(), "episodes": options.episodes, "seed": 0}
    for kind in ("frozen", "turned", "faded", "both"):
        actor = make_actor(
            trained.config.factory(),
            trained.trainees[0].weights,
            seed=0,
            greedy=False,
            num_envs=options.episodes,
            unroll_length=1,
        )
        core = actor.agent.core
        assert isinstance(core, LRU)
        (block,) = core.blocks
        assert isinstance(block, Block)
        missed = block.eigenvalues().detach() ** (TO - FROM)
        size = missed.abs().to(missed.dtype)
        factor = {"frozen": torch.ones_like(missed), "turned": missed / size, "faded": size, "both": missed}[kind]
        freeze = Interference(core, parsed(f"freeze@{FROM}:{TO}"), 0)

        def before(step: int, state: AgentState, playing: Flags) -> AgentState:
            state = freeze(step, state, playing)  # noqa: B023
            if step != TO:
                return state
            h = torch.view_as_complex(state.core.h.contiguous()) * factor  # noqa: B023
            return state._replace(core=state.core._replace(h=torch.view_as_real(h)))

        played = play_first(actor, before, TO)
        solved = played.episodes[:, 3 + actor.batch.episode_fields.index("solved")]
        results[kind] = rate_interval(solved.astype(np.float32))._asdict()
        print(kind, results[kind], flush=True)
    replace_file(RESULT, json.dumps(results, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
