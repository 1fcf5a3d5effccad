"""Standard terms in the site's search: each leads to sections that use another word for it."""

import json
import re
from pathlib import Path
from typing import Any

WORDS: dict[str, tuple[str, ...]] = {
    "rollout trajectory": (r"\bunrolls?\b",),
    "vectorized vectorized vecenv": (r"make_vec", r"--envs-per-actor"),
    "seeds reproducible reproducibility determinism": (r"--seed\b", r"bit for bit"),
    "slurm hpc cluster": (r"--ray-address", r"--restarts"),
    "onnx export deployment": (r"rl-export", r"--torch-export"),
    "callback logging wandb": (r"--track", r"metrics\.jsonl"),
    "hyperparameters sweep tuning pbt": (r"--pbt\.explore",),
    "gpu cuda": (r"--act-on", r"--device"),
    "save load checkpointing": (r"--resume", r"load_agent"),
    "pretrained model zoo hub": (r"zoo:\w",),
    "video gif record": (r"--gif",),
    "pomdp partial observability": (r"memory tasks?",),
    "custom environment gym wrapper": (r"--env \w+:\w+", r"module:Class"),
    "wrappers framestack normalize": (r"--normalize-observations",),
    "action mask invalid": (r"action_mask",),
    "install pip requirements": (r"pip install",),
}
"""Words to find, and regular expressions of the text that they mean."""


def add(index: dict[str, Any]) -> list[str]:
    """Append the words to the entries of a search index that they lead to; returns words that lead nowhere."""
    nowhere: list[str] = []
    for words, meant in WORDS.items():
        entries = [
            entry
            for entry in index["docs"]
            if any(re.search(each, f"{entry['title']} {entry['text']}") for each in meant)
        ]
        for entry in entries:
            entry["text"] += f" <p>Also: {words}</p>"
        nowhere += [] if entries else [words]
    return nowhere


def add_to(site: Path) -> list[str]:
    """`add` for the index of a built site."""
    file = site / "search" / "search_index.json"
    index = json.loads(file.read_text("utf-8"))
    nowhere = add(index)
    file.write_text(json.dumps(index, separators=(",", ":")), "utf-8")
    return nowhere
