"""Settings that learn in minutes on two cores, on top of the papers' settings."""

from .paper import CENTERED_LP_RNN_PPO, LP_RNN_PPO, OTHERS, POPGYM, PPO, RMC_PPO, Preset, core

# Actors use weights that are one update old: without momentum and with a clip, no seed collapsed midway. Normalized
# returns are learned earlier; the entropy bonus decays, so that the agent settles on short paths. Paths have ten steps:
# at the paper's discount of .99, a wandering policy does as well as one that knows the path.
_EASY_BOXWORLD: Preset = {
    "env_args": {"path_lengths": 1, "num_distractors": 0, "grid_size": 6},
    "total_steps": 2_000_000,
    "unroll_length": 20,
    "agent": {"normalize_returns": True},
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

# The shortest corridor; limbo is as long as in the paper. Few embedding units respond to the most frequent
# observations, so that the cue is not lost among the 280 steps of limbo, and most of limbo's actions get no credit.
# A single member may learn what the cue means and forget it; four copy from each other.
_EASY_T_MAZE: Preset = {
    "env_args": {"difficulty": 0},
    "agent": {"torso": {"conv_channels": (), "embedding_scale": 5.4, "embedding_bias": -1.0}},
    "learner": {"max_grad_norm": 40.0},
    "envs_per_update": 8,
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

# 64 episodes at a time instead of 600, each used in two of eight updates. Predicting the next observation trains the
# memory to store the graph's edges: the return reaches 82 after 3 M steps; with rewards alone (A2C), after 12 M.
_EASY_GRAPH: Preset = {
    "env_args": {"variant": "released", "assignment": "random"},
    "envs_per_actor": 64,
    "agent": {"policy_scale": 0.01, "normalize_returns": True, "prediction_size": 128},
    "learner": PPO
    | {
        "algorithm_args": {"epochs": 2, "gae_lambda": 0.95, "advantage_floor": 0.1},
        "entropy_cost": 0.03,
        "value_cost": 0.25,
        "lr": 3e-3,
        "lr_schedule": "linear",
        "eps": 1e-8,
        "max_grad_norm": 10.0,
    },
    "total_steps": 10_000_000,
}

# The paper's Mini-Pacman: its first level is cleared within 0.7 M steps, the second within 1.5 M.
# With 5e-4 and .01 the RMC earns 424 instead of 458 after 5 M steps.
_EASY_MINI_PACMAN: Preset = RMC_PPO | {
    "learner": RMC_PPO["learner"] | {"lr": 1e-3, "entropy_cost": 0.02},
    "total_steps": 5_000_000,
}

# A maze of 5 x 5 cells inside its wall, for 100 steps. The goal pays 10 and few random walks reach it, hence normalized
# returns. Predicting the next observation stores the walls: MNM earns 200 instead of 0.6 after 0.5 M steps.
_EASY_MAZE: Preset = {
    "env_args": {"size": 7, "num_steps": 100},
    "unroll_length": 100,
    "envs_per_update": 64,
    "envs_per_actor": 64,
    "agent": {"previous_action": True, "policy_scale": 0.01, "normalize_returns": True, "prediction_size": 128},
    "learner": PPO
    | {"algorithm_args": {"advantage_floor": 0.1}, "discount": 0.95, "lr": 1e-3, "lr_schedule": "linear"},
    "total_steps": 3_000_000,
}

# Two of the four cues and four trials; one cue comes first.
_EASY_CUED_CATCH: Preset = LP_RNN_PPO | {
    "env_args": {"num_cues": 2, "num_trials": 4, "reward_free_trials": 0},
    "unroll_length": 60,
    "envs_per_update": 512,
    "envs_per_actor": 512,
    "learner": LP_RNN_PPO["learner"] | {"discount": 0.9, "lr": 1e-3},
    "levels": {"curriculum": {"num_cues": [1]}, "curriculum_measure": "caught", "curriculum_score": (3.8,)},
    "total_steps": 5_000_000,
}

# Two lights that are on for 14 steps, reached in stages: one light first, then lights of three steps, then longer ones.
_EASY_SEQUENCE_RECALL: Preset = CENTERED_LP_RNN_PPO | {
    "env_args": {"sequence_length": 2, "demo_light_on_frames": 14, "demo_light_off_frames": 6, "timeout_frames": 200},
    "learner": CENTERED_LP_RNN_PPO["learner"] | {"lr": 7e-4},
    "envs_per_update": 128,
    "envs_per_actor": 128,
    "levels": {
        "curriculum": {
            "sequence_length": [1, 2, 2, 2, 2],
            "demo_light_on_frames": [3, 3, 5, 7, 10],
            "demo_light_off_frames": [2, 2, 3, 4, 5],
            "timeout_frames": [100, 150, 150, 180, 200],
        },
        "curriculum_score": (0.85, 0.7, 0.6, 0.6, 0.6),
        "stagger": 150,
    },
    "total_steps": 2_500_000,
}

# The settings for untuned environments, including the defaults that the paper's settings override.
_EASY_POPGYM: Preset = OTHERS | {
    "learner": OTHERS["learner"]
    | {"algorithm_args": OTHERS["learner"]["algorithm_args"] | {"clip": 0.2, "epochs": 4}, "lr_schedule": "linear"},
    "log_every": 20_000,
}

WIDE_POOLS: Preset = core(viewport_size=32, summarizer_size=256, unit_views=True)

# The pools' content stays meaningful only while the torso does not change. A light or a ball is rewarded immediately:
# predicting the reward trains the readout sooner than advantages, which also contain later rewards.
READ_BY_REWARDS: Preset = {
    "agent": WIDE_POOLS["agent"] | {"torso": {"fixed_features": True}, "prediction_size": 128, "predict": "reward"}
}

SMALLER_CORES: dict[tuple[str, str], Preset] = {
    ("boxworld", "rmc"): core(head_size=32),
    ("cued-catch", "concrete"): core(viewport_size=32, summarizer_size=256),
    ("mini-pacman", "rmc"): core(head_size=32),
    ("sequence-recall", "concrete"): READ_BY_REWARDS,
    ("t-maze", "concrete"): core(viewport_size=8),
    ("maze", "mnm-p"): core(hidden_size=64, memory_size=32, num_heads=1, layer_norm=True),
    ("maze", "mnm-g"): core(hidden_size=64, memory_size=32, num_heads=1, layer_norm=True),
}
"""By environment and core: cores of easy settings and of curricula."""

EASY_CORES: dict[tuple[str, str], Preset] = SMALLER_CORES | {
    ("boxworld", "lstm"): {"envs_per_update": 64, "learner": {"lr": 1.2e-3}},  # measured with the LSTM only
    # reaches a return of .9 in 29 instead of 54 CPU seconds, three seeds; measured with the LSTM only
    ("popgym-repeat-previous", "lstm"): {"envs_per_actor": 64, "learner": {"lr": 1e-3}},
}
"""By environment and core, on top of EASY."""

EASY: dict[str, Preset] = {
    "boxworld": _EASY_BOXWORLD,
    "cued-catch": _EASY_CUED_CATCH,
    "maze": _EASY_MAZE,
    "mini-pacman": _EASY_MINI_PACMAN,
    "pomdp-graph": _EASY_GRAPH,
    "sequence-recall": _EASY_SEQUENCE_RECALL,
    "t-maze": _EASY_T_MAZE,
    **dict.fromkeys(POPGYM, _EASY_POPGYM),
}
"""By environment, on top of PAPER: settings that learn in minutes on two cores."""
