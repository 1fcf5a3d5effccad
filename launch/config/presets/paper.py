"""The papers' settings, per environment and core; settings of other environments, and of PPO for several of them.

Sources: the four papers and their released code, named per entry; unspecified values keep the defaults.
"""

from typing import Any

Preset = dict[str, Any]  # Values that differ from the defaults, in the shape of RunConfig


def core(**options: Any) -> Preset:
    """Return the preset that sets a core's options."""
    return {"agent": {"core_args": options}}


# RMC paper, appendix A.3: IMPALA, batch 32, unroll 40, gamma .99, entropy .005, learning rate tuned in 1e-5..2e-4. The
# optimizer is not reported; Adam on mean losses is our choice, `--optimizer rmsprop_tf --eps 0.1 --reduction sum` is
# that of scalable_agent, on which the paper builds. The paper has no separate settings for Mini-Pacman.
_RMC_PAPER: Preset = {
    "unroll_length": 40,
    "envs_per_update": 32,
    "learner": {"discount": 0.99, "entropy_cost": 0.005, "lr": 1e-4},
}

# A2C as in the FWM and MNM papers.
_A2C: Preset = {
    "algorithm": "a2c",
    "discount": 0.9,
    "entropy_cost": 0.03,
    "value_cost": 0.2,
    "eps": 1e-4,
    "lr_schedule": "constant",
}

# FWM paper, section 4.2, and its released code: one agent on each of 600 graphs, one update per episode of 30 steps; an
# unroll is an episode and the step before the next. The code's value loss has no factor 1/2 (coefficient .1); ours has.
# Baselines: the same with an LSTM.
_GRAPH: Preset = {
    "env_args": {"assignment": "fixed"},
    "unroll_length": 31,
    "envs_per_actor": 600,
    "sync": True,
    "learner": _A2C | {"lr": 1e-3, "max_grad_norm": 0.0},
    "total_steps": 180_000_000,
}

# MNM paper, section 4.3: A2C with the settings of Miconi et al. 2018, here those of its batched successor (30 mazes
# at once, whole episodes and the step between two of them, gradient norm 4).
_MAZE: Preset = {
    "unroll_length": 251,
    "envs_per_actor": 30,
    "sync": True,
    "learner": _A2C | {"lr": 1e-4, "max_grad_norm": 4.0},
    "total_steps": 250_000_000,
}

# LP-RNN paper, section 5.2: IMPALA, unroll 300, a convolutional net to 128 features, gradients cut every 300, 100, 20
# or 3 steps (--bptt-length). Learning rate, entropy, discount and batch are not in the paper; the values are ours.
_LP_RNN: Preset = {
    "unroll_length": 300,
    "envs_per_update": 32,
    "agent": {"torso": {"embedding_size": 128}},
    "learner": {"discount": 0.99, "entropy_cost": 0.005, "lr": 5e-4},
}

# POPGym paper and its released code: PPO of RLlib with RLlib's defaults where the code sets nothing (clip .3, lambda 1,
# 30 epochs, learning rate 5e-5, no entropy bonus, no gradient clipping), 64 environments of 1024 steps and minibatches
# of 8 environments; each model three times, for 15 M steps. RLlib's value loss has no factor 1/2; ours has. Omitted:
# RLlib's adaptive KL penalty, and the two hidden layers of 128 units in each head. Its score MMER is the maximum over
# updates of the mean episode return, hence a row of metrics per update.
_POPGYM: Preset = {
    "unroll_length": 1024,
    "envs_per_actor": 64,
    "agent": {"torso": {"embedding_size": 128}, "previous_action": True},
    "learner": {
        "algorithm": "ppo",
        "algorithm_args": {"clip": 0.3, "epochs": 30, "gae_lambda": 1.0, "minibatches": 8},
        "discount": 0.99,
        "entropy_cost": 0.0,
        "value_cost": 2.0,
        "lr": 5e-5,
        "lr_schedule": "constant",
        "max_grad_norm": 0.0,
    },
    "total_steps": 15_000_000,
    "log_every": 64 * 1024,
}
_TASKS = "repeat-previous repeat-first autoencode count-recall concentration higher-lower battleship mine-sweeper"
POPGYM = tuple(f"popgym-{task}" for task in _TASKS.split())

# Untuned environments. Rewards and observations may have any scale, so both are normalized; steps are expensive, so
# each is used four times, in many small updates. The value loss trains the memory before the policy uses it, so its
# weight is not small; with rare rewards, a gradient clipped to 1 would give minibatches with a reward the least weight.
OTHERS: Preset = {
    "total_steps": 2_000_000,
    "unroll_length": 64,
    "envs_per_actor": 16,
    "agent": {
        "torso": {"embedding_size": 128, "symbol_size": 16, "balance_symbols": True, "normalize_observations": True},
        "previous_action": True,
        "policy_scale": 0.01,
        "normalize_returns": True,
        "prediction_size": 128,
    },
    "learner": {
        "algorithm": "ppo",
        "algorithm_args": {"gae_lambda": 0.97, "advantage_floor": 0.5, "minibatches": 8},
        "discount": 0.99,
        "entropy_cost": 0.02,
        "value_cost": 0.25,
        "lr": 5e-4,
        "max_grad_norm": 10.0,
    },
}
"""Every environment that is not in PAPER."""

PAPER: dict[str, Preset] = {
    "boxworld": _RMC_PAPER,
    "mini-pacman": _RMC_PAPER,
    "pomdp-graph": _GRAPH,
    "maze": _MAZE,
    "cued-catch": _LP_RNN,
    "t-maze": _LP_RNN,
    "sequence-recall": _LP_RNN,
    **dict.fromkeys(POPGYM, _POPGYM),
}
"""By environment; a twin has the settings of its original."""

CORES: dict[tuple[str, str], Preset] = {
    ("boxworld", "rmc"): core(num_slots=4, num_heads=4, head_size=64, gate="memory"),
    ("mini-pacman", "rmc"): core(num_slots=4, num_heads=4, head_size=64, gate="memory"),
    ("pomdp-graph", "fwm"): core(hidden_size=32, memory_size=16, num_reads=3),
    ("pomdp-graph", "lstm"): core(hidden_size=512),
    ("maze", "mnm-p"): core(hidden_size=200, memory_size=100, num_heads=3),
    ("maze", "mnm-g"): core(hidden_size=200, memory_size=100, num_heads=3),
    ("maze", "lstm"): core(hidden_size=200),
}
"""Core options by the paper's pairing of environment and core, on top of PAPER."""

# Each step is used four times; the entropy bonus decays, so that the policy does not forget.
PPO: Preset = {
    "algorithm": "ppo",
    "entropy_cost": 0.01,
    "entropy_schedule": "linear",
    "value_cost": 0.1,
    "max_grad_norm": 1.0,
}

# PPO for the environments of the RMC paper: each step is used twice, in eight updates of 64 environments. The
# initial policy is near uniform; the memory also receives the last action.
RMC_PPO: Preset = {
    "unroll_length": 64,
    "envs_per_update": 64,
    "envs_per_actor": 64,
    "agent": {"previous_action": True, "policy_scale": 0.01, "normalize_returns": True},
    "learner": PPO | {"algorithm_args": {"epochs": 2, "gae_lambda": 0.95}, "lr": 5e-4, "lr_schedule": "linear"},
}

# PPO for the LP-RNN environments. While the agent guesses, the goal earns nothing on average and waiting costs
# almost nothing; with few outcomes per update, the policy settles on waiting: hence many environments, and normalized
# returns and advantages. Few embedding units respond at any one step, so that rare events stand out.
LP_RNN_PPO: Preset = {
    "unroll_length": 100,
    "envs_per_update": 256,
    "envs_per_actor": 256,
    "agent": {
        "torso": {"conv_channels": (), "embedding_scale": 5.4, "embedding_bias": -1.0},
        "policy_scale": 0.01,
        "normalize_returns": True,
    },
    "learner": PPO | {"algorithm_args": {"gae_lambda": 0.97, "advantage_floor": 0.1}, "discount": 0.99, "lr": 5e-4},
}

# A single event contributes little to a slow pool and is lost among constant features: the memory therefore receives
# features of mean 0, and the value cost and the clip let the value loss train it.
CENTERED_LP_RNN_PPO: Preset = LP_RNN_PPO | {
    "agent": LP_RNN_PPO["agent"] | {"torso": LP_RNN_PPO["agent"]["torso"] | {"normalize_features": True}},
    "learner": LP_RNN_PPO["learner"] | {"value_cost": 0.5, "max_grad_norm": 10.0},
}
