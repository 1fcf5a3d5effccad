"""`rl-eval --card DIR`: export a trained agent as a folder to share, with a Hugging Face model card as README."""

import json
from typing import Any

from torch import Tensor

from ... import zoo
from ..config.run_config import RESUMABLE, RunConfig
from ..config.settings.plain import to_dict
from ..config.urls import open_store, redacted, store_errors
from ..metrics.provenance import provenance
from ..runs.directory import as_toml
from .episodes import RATES, Summary

README, GIF = "README.md", "agent.gif"
DIAGNOSIS = "a diagnosis of the network, not a result of reinforcement learning"
Facts = dict[str, Any]


def write_card(
    target: str, config: RunConfig, weights: dict[str, Tensor], summary: Summary, facts: Facts, gif: bytes | None
) -> str:
    """Write a card that `open_run` can read to a folder or URL; return a message. Raises EngramError. The card contains
    `config`, that of training, without settings of a machine; `facts` are of training and evaluation, e.g. the seeds.
    """
    settings = {name: value for name, value in to_dict(config).items() if name not in RESUMABLE}
    metadata = {"env": config.env, "core": config.agent.core}
    metadata |= {"evaluation": summary.all.plain() | facts, "provenance": provenance()}
    text = page(config, summary, facts, gif is not None)
    contents = zoo.files(as_toml(settings), weights, metadata) | {README: text.encode()}
    if gif is not None:
        contents[GIF] = gif
    with store_errors(f"--card: cannot write to {redacted(target)}", target):
        store, root = open_store(target)
        store.makedirs(root, exist_ok=True)
        for name, content in contents.items():
            store.pipe_file(f"{root}/{name}", content)
    return f"wrote {redacted(target)}, which rl-eval and engram.load_agent can read"


def page(config: RunConfig, summary: Summary, facts: Facts, animated: bool) -> str:
    """Return the model card: YAML front matter, metrics with their intervals, and how to load the agent."""
    env, core, estimates = config.env, config.agent.core, summary.estimates
    means = {"mean_reward": estimates["return"].mean} | {x: estimates[x].mean for x in RATES if x in estimates}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement learning"},
        "dataset": {"type": env, "name": env},
        "metrics": [{"type": name, "name": name, "value": round(mean, 6)} for name, mean in means.items()],
    }
    front = {
        "library_name": "engram",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "memory", env, core],
        "model-index": [{"name": f"{env}-{core}", "results": [result]}],
    }
    # JSON values are YAML values.
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", f"# {env} with {core}", ""]
    lines += [f"![The first episodes]({GIF})", ""] if animated else []
    lines += [f"| metric | mean of {summary.all.episodes:,} episodes | 95% interval |", "|---|---|---|"]
    for name, x in estimates.items():
        interval = f"{x.low:.4g} to {x.high:.4g}" if x.low <= x.high else ""
        lines.append(f"| {name.replace('_', ' ')} | {x.mean:.4g} | {interval} |")
    lines += ["", *(f"* {name.replace('_', ' ')}: {value}" for name, value in facts.items())]
    lines += [f"* imitates: {config.learner.imitate}, {DIAGNOSIS}"] if config.learner.imitate else []
    lines += ["", "```python", "import engram", ""]
    lines += ['agent = engram.load_agent("URL or path of this folder")', "```", ""]
    return "\n".join(lines)
