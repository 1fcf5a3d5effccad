"""`rl-eval --card DIR`: export a trained agent as a folder to share, with a Hugging Face model card as README."""

import json
from typing import Any, NamedTuple

from torch import Tensor

from ... import zoo
from ..config.run_config import RESUMABLE, RunConfig
from ..config.settings.plain import to_dict
from ..config.urls import open_store, redacted, store_errors
from ..metrics.provenance import provenance
from ..runs.directory import as_toml
from .episodes import RATES, Summary

README, GIF = "README.md", "agent.gif"


class Card(NamedTuple):
    """Contents of a model card."""

    config: RunConfig  # Configuration of the training run; the card omits machine-specific settings
    env_args: dict[str, Any]  # Parameters of the environment in the evaluation
    weights: dict[str, Tensor]
    summary: Summary
    facts: dict[str, Any]  # Facts about training and evaluation, such as the seeds
    gif: bytes | None  # An animation of the first episodes; None if the environment cannot be rendered


def write_card(target: str, card: Card) -> str:
    """Write a card that `open_run` can read to the folder or URL `target`; return a message. Raises EngramError."""
    settings = {name: value for name, value in to_dict(card.config).items() if name not in RESUMABLE}
    evaluation = card.summary.all.plain() | {"env_args": card.env_args} | card.facts
    metadata = {"env": card.config.env, "core": card.config.agent.core}
    metadata |= {"evaluation": evaluation, "provenance": provenance()}
    config = as_toml(settings)
    contents = zoo.files(config, card.weights, metadata) | {README: page(card).encode()}
    if card.gif is not None:
        contents[GIF] = card.gif
    with store_errors(f"--card: cannot write to {redacted(target)}", target):
        store, root = open_store(target)
        store.makedirs(root, exist_ok=True)
        for name, content in contents.items():
            store.pipe_file(f"{root}/{name}", content)
    return f"wrote {redacted(target)}, which rl-eval and engram.load_agent can read"


def page(card: Card) -> str:
    """Return the model card: YAML front matter, metrics with their intervals, and how to load the agent."""
    config, env_args, _, summary, facts, gif = card
    env, core = config.env, config.agent.core
    means = {"mean_reward": summary.estimates["return"].mean} | {
        name: summary.estimates[name].mean for name in RATES if name in summary.estimates
    }
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
    lines += [f"![The first episodes]({GIF})", ""] if gif else []
    lines += [f"| metric | mean of {summary.all.episodes:,} episodes | 95% interval |", "|---|---|---|"]
    for name, x in summary.estimates.items():
        interval = f"{x.low:.4g} to {x.high:.4g}" if x.low <= x.high else ""
        lines.append(f"| {name.replace('_', ' ')} | {x.mean:.4g} | {interval} |")
    lines += ["", *(f"* {name.replace('_', ' ')}: {value}" for name, value in facts.items())]
    lines += [f"* environment parameters: `{json.dumps(env_args)}`", "", "```python", "import engram", ""]
    lines += ['agent = engram.load_agent("URL or path of this folder")', "```", ""]
    return "\n".join(lines)
