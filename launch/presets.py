"""The papers' settings, per world and core, and an easy setting to begin with.

A preset is a dict of what differs from the defaults, in the shape of RunConfig. Sources: the four papers and their
released code, as collected per entry below; what they leave open has the default.
"""

from typing import Any

from .config import RunConfig, from_dict

Preset = dict[str, Any]

# RMC paper, appendix A.3 (IMPALA, batch 32, unroll 40, gamma .99, entropy .005, lr tuned in 1e-5..2e-4; RMSProp with
# decay .99 and eps .1 on summed losses is scalable_agent's, which the paper builds on). Adam on mean losses reaches
# the same places in fewer steps at this batch size; `--optimiser rmsprop_tf --eps 0.1 --reduction sum` is the original.
_BOXWORLD: Preset = {
    "unroll_length": 40,
    "batch_size": 32,
    "learner": {"discount": 0.99, "entropy_cost": 0.005, "lr": 2e-4},
}

_EASY_BOXWORLD: Preset = {
    "env_args": {"path_lengths": 1, "num_distractors": 0},
    "total_steps": 1_500_000,
    "learner": {"lr": 4e-4},
}

PAPER: dict[tuple[str, str], Preset] = {
    ("boxworld", "*"): _BOXWORLD,
}
"""By (world, core); core "*" is any core without an entry of its own. A twin has the settings of its world."""

EASY: dict[str, Preset] = {"boxworld": _EASY_BOXWORLD}
"""By world, on top of PAPER: settings that are learnt in minutes on two cores."""

PRESETS = ("paper", "easy")


def preset(name: str, env: str, core: str) -> RunConfig:
    """The configuration that `--preset NAME --env ENV --core CORE` stands for, before any other flag."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    world = env.removesuffix("-twin")
    values = merge({"env": env, "agent": {"core": core}}, PAPER.get((world, core), PAPER.get((world, "*"), {})))
    if name == "easy":
        if world not in EASY:
            raise ValueError(f"no easy preset for {env!r}; there is one for: {', '.join(sorted(EASY))}")
        values = merge(values, EASY[world])
    return from_dict(RunConfig, values)


def merge(base: Preset, over: Preset) -> Preset:
    """`base` with the values of `over` laid on top, dict by dict."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged
