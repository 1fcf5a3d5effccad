"""A trained agent's memory: interventions and decoded facts, all over the same episodes, as one result.

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
from engram.launch.evaluate.decode import decode
from engram.launch.evaluate.intervene import parsed, play_all
from engram.launch.evaluate.study import effect, effects
from engram.launch.metrics.provenance import provenance
from engram.launch.run.settings.plain import to_dict
from engram.launch.run.trained import make_actor, open_run

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Study and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("name")
    parser.add_argument("--intervene", nargs="*", default=[])
    parser.add_argument("--decode", nargs="*", default=[], help="FACT or FACT:PART=WHICH")
    parser.add_argument("--every", type=int, default=10, help="steps from one decoder to the next")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="environments that play together")
    parser.add_argument("--checkpoint", default="latest")
    given = parser.parse_args()
    prepare_process(1)
    trained = open_run(given.run, given.checkpoint)
    factory, weights = trained.config.factory(), trained.trainees[0].weights

    def make(num_envs: int, first: int) -> Actor:
        return make_actor(factory, weights, seed=0, greedy=False, num_envs=num_envs, unroll_length=1, first_index=first)

    plain = to_dict(trained.config)
    kept = ("env", "env_args", "agent", "learner", "seed", "unroll_length", "envs_per_actor", "envs_per_update")
    found: dict[str, Any] = {
        **provenance(),
        "checkpoint": trained.checkpoint.name,
        "trained": {name: plain[name] for name in kept},
        "episodes": given.episodes,
        "seed": 0,
    }
    base = play_all(make, given.episodes, given.batch, None, 0)
    fields = tuple(make(1, 0).batch.episode_fields)
    undisturbed = effect(base, base, fields, 0).outcomes
    found["undisturbed"] = {name: outcome.without for name, outcome in undisturbed.items()}
    found["mean_length"] = float(base.episodes[:, 2].mean())
    print(found["undisturbed"], found["mean_length"], flush=True)
    for words in given.intervene:
        what = parsed(words)
        point = effect(base, play_all(make, given.episodes, given.batch, what, 0), fields, what.step)
        (found.setdefault("interventions", {})[words],) = effects([point]).plain
        said = {k: [round(d.changed, 3), [round(x, 3) for x in d.difference]] for k, d in point.outcomes.items()}
        print(words, point.reached, said, flush=True)
    for words in given.decode:
        fact, _, part = words.partition(":")
        readings = decode(make(given.episodes, 0), fact, given.every, part)
        found.setdefault("decoded", {})[words] = [reading._asdict() for reading in readings]
        print(words, [(r.step, r.episodes, round(r.accuracy, 3), round(r.chance, 3)) for r in readings], flush=True)
    replace_file(RESULTS / f"insight-{given.name}.json", json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
