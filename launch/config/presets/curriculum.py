"""Curricula: the papers' environments, learned in stages, on top of the papers' settings."""

from .easy import READ_BY_REWARDS, SMALLER_CORES
from .paper import CENTERED_LP_RNN_PPO, LP_RNN_PPO, RMC_PPO, Preset

# The paper's BoxWorld. Distractors first appear in small rooms, where they are visible. Then rooms and paths grow
# without distractors: an episode that a distractor ends teaches nothing about the path. Finally distractors return, few
# and on short paths: after stages with only one lock, the agent opened only the gem's box. Predicting the next
# observation trains the memory to store the room; colors are symbols.
_STAGED_BOXWORLD: Preset = RMC_PPO | {
    "unroll_length": 80,
    "agent": RMC_PPO["agent"]
    | {"torso": {"conv_channels": (32, 32), "symbol_size": 16, "normalize_observations": True}, "prediction_size": 128},
    "learner": RMC_PPO["learner"] | {"discount": 0.985, "entropy_cost": 0.015, "lr": 1e-3},
    "levels": {
        "curriculum": {
            "grid_size": [6, 8, 8, 12, 12, 12, 12, 12, 12],
            "path_lengths": [1, 1, (1, 2), (1, 3), (1, 5), (1, 2), (1, 2), (1, 3), (1, 4)],
            "num_distractors": [0, (0, 1), (0, 2), 0, 0, (0, 2), (0, 3), (0, 3), (0, 4)],
        },
        "curriculum_score": (0.95, 0.9, 0.78, 0.8, 0.65, 0.71, 0.65, 0.55, 0.42),
        "curriculum_steps": 1_000_000,
    },
    "total_steps": 20_000_000,
}

# The paper's T-maze: the agent learns to remember in short episodes. Before that, waiting costs no more than
# guessing: a short limbo and many small updates per batch end this phase before the policy has learned to wait. Long
# unrolls contain more ends of episodes per update, so the agent forgets less.
_STAGED_T_MAZE: Preset = LP_RNN_PPO | {
    "unroll_length": 300,
    "learner": LP_RNN_PPO["learner"]
    | {"algorithm_args": LP_RNN_PPO["learner"]["algorithm_args"] | {"minibatches": 12}},
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

# The paper's Sequence Recall: one to four lights that are on for three steps, then for about a third longer in each
# stage: if the time doubles, the agent has to learn to remember again. On average, all guessed sequences of one length
# pay the same: three times the usual entropy bonus keeps the policy from settling on some of them.
_STAGED_SEQUENCE_RECALL: Preset = CENTERED_LP_RNN_PPO | {
    "learner": CENTERED_LP_RNN_PPO["learner"]
    | {
        "algorithm_args": CENTERED_LP_RNN_PPO["learner"]["algorithm_args"] | {"minibatches": 8},
        "entropy_cost": 0.03,
        "lr": 4e-4,
    },
    "levels": {
        "curriculum": {
            "sequence_length": [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4],
            "demo_light_on_frames": [3, 3, 3, 3, 4, 6, 9, 13, 18, 25, 34, 45],
            "demo_light_off_frames": [2, 2, 2, 2, 3, 4, 5, 7, 9, 13, 17, 23],
            "timeout_frames": [100, 150, 200, 250, 260, 300, 350, 400, 450, 500, 600, 800],
        },
        "curriculum_score": (0.85, 0.75, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4),
        "stagger": 200,
    },
    "total_steps": 60_000_000,
}

# The paper's Cued Catch: first fewer cues, since knowing the meaning of one of four earns nothing; then more trials.
# All episodes have the same length, and their first 320 steps earn nothing. Environments are staggered, since updates
# learn nothing while all of them are in this phase, three in a row. With unrolls of 60 steps and an entropy bonus of
# .02, the agent forgets the late trials.
_STAGED_CUED_CATCH: Preset = CENTERED_LP_RNN_PPO | {
    "unroll_length": 100,
    "envs_per_update": 512,
    "envs_per_actor": 512,
    "learner": CENTERED_LP_RNN_PPO["learner"] | {"discount": 0.9, "lr": 4e-4, "entropy_cost": 0.03},
    "levels": {
        "curriculum": {
            "num_cues": [1, 2, 3, 4, 4, 4, 4, 4],
            "num_trials": [4, 4, 4, 4, 8, 15, 30, 60],
            "reward_free_trials": [0, 0, 0, 0, 0, 0, 5, 15],
        },
        "curriculum_measure": "return",
        "curriculum_score": (3.8, 3.7, 3.6, 3.5, 6.9, 12.8, 21.5, 38.0),
        "stagger": 739,
    },
    "total_steps": 20_000_000,
}

CURRICULUM: dict[str, Preset] = {
    "boxworld": _STAGED_BOXWORLD,
    "cued-catch": _STAGED_CUED_CATCH,
    "sequence-recall": _STAGED_SEQUENCE_RECALL,
    "t-maze": _STAGED_T_MAZE,
}
"""By environment, on top of PAPER: the paper's environment, learned in stages."""

# Layers above fixed features tolerate a higher learning rate.
_READ_BY_REWARDS: Preset = READ_BY_REWARDS | {"learner": {"lr": 8e-4}}

CURRICULUM_CORES: dict[tuple[str, str], Preset] = SMALLER_CORES | {
    (env, core): _READ_BY_REWARDS for env in ("cued-catch", "sequence-recall") for core in ("concrete", "parallel")
}
"""By environment and core, on top of CURRICULUM."""
