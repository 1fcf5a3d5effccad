"""PPO settings that several environments share: the base of easy settings and curricula."""

from .paper import Preset

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
