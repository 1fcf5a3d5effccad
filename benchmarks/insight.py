"""Interventions on a trained agent's recurrent state and facts decoded from it, over the same episodes.

    python benchmarks/insight.py RUN NAME --intervene wipe@80 wipe@80:pool=5 --decode goal --every 10

RUN is a run directory or zoo:NAME; writes results/insight-NAME.json. benchmarks/notes/insight.md has the results.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from engram.actors.actor import Actor
from engram.agents.process import prepare_process
from engram.base.files import replace_file
from engram.launch.config.plain import to_dict
from engram.launch.evaluate.studies import decode, effect, parsed, play_all
from engram.launch.metrics.provenance import provenance
from engram.launch.runs.trained import make_actor, open_run

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the studies and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("--intervene", nargs="*", default=[])
    parser.add_argument("--decode", nargs="*", default=[], help="FACT or FACT:PART=WHICH")
    parser.add_argument("--every", type=int, default=10, help="steps from one decoder to the next")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="environments that play together")
    parser.add_argument("--checkpoint", default="latest")
    options = parser.parse_args()
    prepare_process(1)
    trained = open_run(options.run, options.checkpoint)
    factory, weights = trained.config.factory(), trained.trainees[0].weights

    def make(num_envs: int, first: int) -> Actor:
        return make_actor(factory, weights, seed=0, greedy=False, num_envs=num_envs, unroll_length=1, first_index=first)

    plain = to_dict(trained.config)
    names = ("env", "env_args", "agent", "learner", "seed", "unroll_length", "envs_per_actor", "envs_per_update")
    results: dict[str, Any] = {
        **provenance(),
        "checkpoint": trained.checkpoint.name,
        "trained": {name: plain[name] for name in names},
        "episodes": options.episodes,
        "seed": 0,
    }
    base = play_all(make, options.episodes, options.batch, None, 0)
    fields = tuple(make(1, 0).batch.episode_fields)
    undisturbed = effect(base, base, fields, 0).outcomes
    results["undisturbed"] = {name: outcome.without for name, outcome in undisturbed.items()}
    results["mean_length"] = float(base.episodes[:, 2].mean())
    print(results["undisturbed"], results["mean_length"], flush=True)
    for text in options.intervene:
        change = parsed(text)
        point = effect(base, play_all(make, options.episodes, options.batch, change, 0), fields, change.step)
        results.setdefault("interventions", {})[text] = point.plain()
        summary = {k: [round(d.changed, 3), [round(x, 3) for x in d.difference]] for k, d in point.outcomes.items()}
        print(text, point.reached, summary, flush=True)
    for text in options.decode:
        fact, _, part = text.partition(":")
        readings = decode(make(options.episodes, 0), fact, options.every, part)
        results.setdefault("decoded", {})[text] = [reading._asdict() for reading in readings]
        print(text, [(r.step, r.episodes, round(r.accuracy, 3), round(r.chance, 3)) for r in readings], flush=True)
    replace_file(RESULTS / f"insight-{options.name}.json", json.dumps(results, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
