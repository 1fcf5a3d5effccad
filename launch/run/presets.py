"""The papers' settings, per world and core, easy settings to begin with, and curricula.

A preset is a dict of what differs from the defaults, in the shape of RunConfig. Sources: the four papers and their
released code, named per entry; what they leave open has the default.
"""

from typing import Any

from ...envs.registration import find_world, is_world
from .config import RunConfig, from_dict

Preset = dict[str, Any]

# RMC paper, appendix A.3: IMPALA, batch 32, unroll 40, gamma .99, entropy .005, learning rate tuned in 1e-5..2e-4. The
# optimiser is not printed there; Adam on mean losses is ours, `--optimiser rmsprop_tf --eps 0.1 --reduction sum` is the
# one of scalable_agent, which the paper builds on. Mini-Pacman has no settings of its own in the paper.
_RMC_PAPER: Preset = {
    "unroll_length": 40,
    "batch_size": 32,
    "learner": {"discount": 0.99, "entropy_cost": 0.005, "lr": 1e-4},
}

# FWM paper, section 4.2 and its released code: one agent on each of 600 graphs, one update per episode of 30 steps: an
# unroll is an episode and the row between two. The code's value coefficient .1 has no half in it; ours has. Baselines:
# the same with an LSTM.
_GRAPH: Preset = {
    "env_args": {"assignment": "fixed"},
    "unroll_length": 31,
    "envs_per_actor": 600,
    "sync": True,
    "learner": {
        "algorithm": "a2c",
        "discount": 0.9,
        "entropy_cost": 0.03,
        "value_cost": 0.2,
        "lr": 1e-3,
        "eps": 1e-4,
        "lr_schedule": "constant",
        "max_grad_norm": 0.0,
    },
    "total_steps": 180_000_000,
}

# MNM paper, section 4.3: A2C with the settings of Miconi et al. 2018, here of its batched successor (30 mazes at once,
# whole episodes and the row between two, gradient norm 4).
_MAZE: Preset = {
    "unroll_length": 251,
    "envs_per_actor": 30,
    "sync": True,
    "learner": {
        "algorithm": "a2c",
        "discount": 0.9,
        "entropy_cost": 0.03,
        "value_cost": 0.2,
        "lr": 1e-4,
        "eps": 1e-4,
        "lr_schedule": "constant",
        "max_grad_norm": 4.0,
    },
    "total_steps": 250_000_000,
}

# LP-RNN paper, section 5.2: IMPALA, unroll 300, a convolutional net to 128 numbers, gradients cut every 300, 100, 20 or
# 3 steps (--bptt-length). Learning rate, entropy, discount and batch are not in the paper: ours.
_LP_RNN: Preset = {
    "unroll_length": 300,
    "batch_size": 32,
    "agent": {"torso": {"embedding_size": 128}},
    "learner": {"discount": 0.99, "entropy_cost": 0.005, "lr": 5e-4},
}

# Actors act with weights one update old. Momentum keeps going where unrolls of older weights pointed, and a batch asks
# again for what updates since have done: without the one and with a clip on the other no seed fell half-way. Returns
# in running units are learnt sooner; the bonus for entropy fades, so that the agent settles on short ways. Ways are ten
# steps: at the paper's discount of .99 a detour costs next to nothing, and a policy that wanders does as well as one
# that knows the way.
_EASY_BOXWORLD: Preset = {
    "env_args": {"path_lengths": 1, "num_distractors": 0, "grid_size": 6},
    "total_steps": 2_000_000,
    "unroll_length": 20,
    "agent": {"normalise_returns": True},
    "learner": {
        "algorithm_args": {"policy_clip": 0.2},
        "discount": 0.97,
        "lr": 1e-4,
        "adam_beta1": 0.0,
        "entropy_cost": 0.002,
        "entropy_schedule": "linear",
        "value_cost": 0.25,
    },
}

# The shortest corridor; limbo is as long as in the paper. Few embedding units answer to what is seen most of the time,
# so that the cue is not lost among the 280 steps of limbo, and most of limbo's actions get no credit. One member alone
# may find out what the cue means and lose it again; four help each other.
_EASY_T_MAZE: Preset = {
    "env_args": {"difficulty": 0},
    "agent": {"torso": {"conv_channels": (), "embedding_scale": 5.4, "embedding_bias": -1.0}},
    "learner": {"max_grad_norm": 40.0},
    "batch_size": 8,
    "envs_per_actor": 64,
    "population": 4,
    "pbt": {
        "explore": (
            "learner.lr=loguniform(2e-4,2e-3)",
            "learner.entropy_cost=loguniform(2e-4,1e-3)",
            "learner.discount=uniform(0.96,0.985)",
        ),
        "warmup": 1500,
        "interval": 500,
        "window": 300,
    },
    "total_steps": 10_000_000,
}

# 64 episodes per update instead of 600, four times the learning rate, ten times the entropy cost: until 9 M steps the
# policy makes no use of the memory and earns 51. At a cost of .1 it earned as much after 1.5 M, with half the entropy.
_EASY_GRAPH: Preset = {
    "env_args": {"variant": "released", "assignment": "drawn"},
    "envs_per_actor": 64,
    "learner": {
        "algorithm_args": {"gae_lambda": 0.95},
        "entropy_cost": 0.3,
        "value_cost": 0.05,
        "lr": 4e-3,
        "eps": 1e-8,
        "max_grad_norm": 5.0,
    },
    "total_steps": 30_000_000,
}

# Each step used four times; a bonus for entropy that fades, so that what was found is kept.
_PPO: Preset = {
    "algorithm": "ppo",
    "entropy_cost": 0.01,
    "entropy_schedule": "linear",
    "value_cost": 0.1,
    "max_grad_norm": 1.0,
}

# A maze of 5 x 5 cells inside its wall, for 100 steps. The goal pays 10 and is found by few random walks: returns in
# running units.
_EASY_MAZE: Preset = {
    "env_args": {"size": 7, "num_steps": 100},
    "unroll_length": 100,
    "batch_size": 64,
    "envs_per_actor": 64,
    "agent": {"previous_action": True, "policy_scale": 0.01, "normalise_returns": True},
    "learner": _PPO
    | {"algorithm_args": {"advantage_floor": 0.1}, "discount": 0.95, "lr": 1e-3, "lr_schedule": "linear"},
    "total_steps": 3_000_000,
}

# PPO for the LP-RNN worlds. As long as the goal is a guess it earns nothing on average, waiting costs next to nothing,
# and a learner that is shaken by few outcomes settles on waiting: hence many environments, and returns and advantages
# in running units. Few embedding units answer at any one step, so that what has to be stored stands out.
_LP_RNN_PPO: Preset = {
    "unroll_length": 100,
    "batch_size": 256,
    "envs_per_actor": 256,
    "agent": {
        "torso": {"conv_channels": (), "embedding_scale": 5.4, "embedding_bias": -1.0},
        "policy_scale": 0.01,
        "normalise_returns": True,
    },
    "learner": _PPO | {"algorithm_args": {"gae_lambda": 0.97, "advantage_floor": 0.1}, "discount": 0.99, "lr": 5e-4},
}

# The paper's T-maze: the memory is learnt where episodes are short. Until it is, waiting costs no more than guessing: a
# short limbo and many small steps from each batch leave that behind before the policy has learnt to wait. Long unrolls
# show each update more ends of episodes, which keeps what was learnt.
_STAGED_T_MAZE: Preset = _LP_RNN_PPO | {
    "unroll_length": 300,
    "learner": _LP_RNN_PPO["learner"]
    | {"algorithm_args": _LP_RNN_PPO["learner"]["algorithm_args"] | {"minibatches": 12}},
    "levels": {
        "curriculum": {
            "limbo_time": [10, 20, 40, 80, 140, 200, 280, 280, 280],
            "teleport_delay": [1, 1, 1, 10, 30, 50, 50, 50, 50],
            "half_width": [5, 5, 5, 5, 7, 10, 15, 22, 35],
        },
        "curriculum_episodes": 300,
    },
    "total_steps": 12_000_000,
}

# Two of the four cues and four trials; one cue comes first.
_EASY_CUED_CATCH: Preset = _LP_RNN_PPO | {
    "env_args": {"num_cues": 2, "num_trials": 4, "reward_free_trials": 0},
    "unroll_length": 60,
    "batch_size": 512,
    "envs_per_actor": 512,
    "learner": _LP_RNN_PPO["learner"] | {"discount": 0.9, "lr": 1e-3},
    "levels": {"curriculum": {"num_cues": [1]}, "curriculum_measure": "caught", "curriculum_score": (3.8,)},
    "total_steps": 5_000_000,
}

# Two lights that are on for three steps; one light comes first.
_EASY_SEQUENCE_RECALL: Preset = _LP_RNN_PPO | {
    "env_args": {
        "sequence_length": 2,
        "demo_light_on_frames": 3,
        "demo_light_off_frames": 2,
        "timeout_frames": 150,
    },
    "batch_size": 128,
    "envs_per_actor": 128,
    "levels": {"curriculum": {"sequence_length": [1], "timeout_frames": [100]}, "curriculum_score": (0.85,)},
    "total_steps": 4_000_000,
}

# Worlds that nobody has tuned anything for. Rewards and observations have any size there, so both are normalised; steps
# are dear, so each is used four times, in many small updates; the policy begins near uniform, and the value error must
# not drown it, which in running units is large wherever rewards are rare; the run ends.
OTHERS: Preset = {
    "total_steps": 2_000_000,
    "unroll_length": 128,
    "envs_per_actor": 16,
    "agent": {
        "torso": {"embedding_size": 128, "symbol_size": 16, "normalise_observations": True},
        "previous_action": True,
        "policy_scale": 0.01,
        "normalise_returns": True,
    },
    "learner": {
        "algorithm": "ppo",
        "algorithm_args": {"gae_lambda": 0.97, "advantage_floor": 0.1, "minibatches": 8},
        "discount": 0.99,
        "entropy_cost": 0.01,
        "value_cost": 0.1,
        "lr": 1e-3,
    },
}
"""Every world that is not in PAPER."""

PAPER: dict[str, Preset] = {
    "boxworld": _RMC_PAPER,
    "mini-pacman": _RMC_PAPER,
    "pomdp-graph": _GRAPH,
    "maze": _MAZE,
    "cued-catch": _LP_RNN,
    "t-maze": _LP_RNN,
    "sequence-recall": _LP_RNN,
}
"""By world; a twin has the settings of its world."""

CORES: dict[tuple[str, str], dict[str, Any]] = {
    ("boxworld", "rmc"): {"num_slots": 4, "num_heads": 4, "head_size": 64, "gate": "memory"},
    ("mini-pacman", "rmc"): {"num_slots": 4, "num_heads": 4, "head_size": 64, "gate": "memory"},
    ("pomdp-graph", "fwm"): {"hidden_size": 32, "memory_size": 16, "num_reads": 3},
    ("pomdp-graph", "lstm"): {"hidden_size": 512},
    ("maze", "mnm-p"): {"hidden_size": 200, "memory_size": 100, "num_heads": 3},
    ("maze", "mnm-g"): {"hidden_size": 200, "memory_size": 100, "num_heads": 3},
    ("maze", "lstm"): {"hidden_size": 200},
}
"""A paper's core options for its own pairing of world and core."""

EASY_CORES: dict[tuple[str, str], dict[str, Any]] = {
    ("boxworld", "rmc"): {"head_size": 32},
    ("t-maze", "concrete"): {"viewport_size": 8},
    ("maze", "mnm-p"): {"hidden_size": 64, "memory_size": 32, "num_heads": 1, "layer_norm": True},
    ("maze", "mnm-g"): {"hidden_size": 64, "memory_size": 32, "num_heads": 1, "layer_norm": True},
}
"""Changes of an easy setting or a curriculum to CORES."""

EASY: dict[str, Preset] = {
    "boxworld": _EASY_BOXWORLD,
    "cued-catch": _EASY_CUED_CATCH,
    "maze": _EASY_MAZE,
    "pomdp-graph": _EASY_GRAPH,
    "sequence-recall": _EASY_SEQUENCE_RECALL,
    "t-maze": _EASY_T_MAZE,
}
"""By world, on top of PAPER: settings that are learnt in minutes on two cores."""

CURRICULUM: dict[str, Preset] = {"t-maze": _STAGED_T_MAZE}
"""By world, on top of PAPER: the paper's world, learnt by stages."""

_VARIANTS = {"easy": EASY, "curriculum": CURRICULUM}

PRESETS = ("paper", *_VARIANTS)


def preset(name: str, env: str, core: str) -> RunConfig:
    """The configuration that `--preset NAME --env ENV --core CORE` stands for, before any other flag."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    world = world_of(env)
    values = merge(
        {
            "env": env,
            "agent": {"core": core, "core_args": CORES.get((world, core), {})},
        },
        PAPER.get(world, OTHERS),
    )
    if name in _VARIANTS:
        worlds = _VARIANTS[name]
        if world not in worlds:
            raise ValueError(f"no preset {name!r} for {env!r}; there is one for: {', '.join(sorted(worlds))}")
        values = merge(merge(values, worlds[world]), {"agent": {"core_args": EASY_CORES.get((world, core), {})}})
    return from_dict(RunConfig, values)


def world_of(env: str) -> str:
    """The world whose settings a name on a command line has: a twin has those of its world, an id those of its name."""
    name = env.removeprefix("engram:")
    return find_world(name)[0].name if is_world(name) else env


def is_easier_than_paper(env: str, core: str, env_args: dict[str, Any]) -> bool:
    """Whether a world of the papers has other parameters than there."""
    if world_of(env) not in PAPER:
        return False
    paper = preset(PRESETS[0], env, core).env_args
    return env_args != paper


def merge(base: Preset, over: Preset) -> Preset:
    """`base` with the values of `over` laid on top, dict by dict."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged
