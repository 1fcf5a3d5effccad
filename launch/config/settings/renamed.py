"""Settings that earlier versions saved with another name or path, as in the runs in zoo/ and training/, and names that
other libraries use."""

from typing import Any

RENAMED = {
    "optimiser": "optimizer",
    "normalise_advantages": "normalize_advantages",
    "normalise_features": "normalize_features",
    "normalise_observations": "normalize_observations",
    "normalise_returns": "normalize_returns",
    "summariser_size": "summarizer_size",
}
FORMER_FLAGS = {"picture": "plot"}
"""Names of flags in earlier versions, with their current names."""
_OTHER_NAMES = {
    "discount": "gamma",
    "entropy_cost": "ent_coef",
    "env": "env_id env_name environment",
    "envs_per_actor": "num_envs n_envs",
    "eval_every": "eval_freq",
    "log_every": "log_interval",
    "lr": "learning_rate",
    "lr_schedule": "anneal_lr",
    "num_actors": "num_workers",
    "run_dir": "log_dir logdir output_dir exp_name run_name tensorboard_log",
    "total_steps": "steps timesteps total_timesteps",
    "unroll_length": "n_steps num_steps rollout rollout_length",
    "value_cost": "vf_coef",
}
OTHER_NAMES = {name: ours for ours, names in _OTHER_NAMES.items() for name in names.split()}
"""Settings of a run by their names in other libraries, to suggest them for unknown names."""
MOVED = {"clip_rho": "vtrace", "clip_pg_rho": "vtrace", "gae_lambda": "a2c"}
"""Former settings of every learner, and the algorithms to which they now belong."""


def upgraded(settings: dict[str, Any], default_algorithm: str) -> dict[str, Any]:
    """Convert the settings of a run to current names and paths."""
    settings = _rename({"envs_per_update" if key == "batch_size" else key: x for key, x in settings.items()})
    if isinstance(learner := settings.get("learner"), dict):
        algorithm = learner.get("algorithm", default_algorithm)
        moved = {key: learner[key] for key, reader in MOVED.items() if key in learner and reader == algorithm}
        learner = {key: value for key, value in learner.items() if key not in MOVED}
        settings["learner"] = learner | ({"algorithm_args": moved | learner.get("algorithm_args", {})} if moved else {})
    if isinstance(pbt := settings.get("pbt"), dict):
        settings["pbt"] = {key: value for key, value in pbt.items() if key != "patience"}  # removed
    if isinstance(parameters := settings.get("env_args"), dict) and parameters.get("assignment") == "drawn":
        settings["env_args"] = parameters | {"assignment": "random"}
    agent = settings.get("agent")
    if isinstance(agent, dict) and agent.get("previous_reward") and "time_horizon" in agent:
        settings["agent"] = {"previous_reward_clip": 1.0} | agent  # all settings but this one were saved
    return settings


def _rename(settings: dict[str, Any]) -> dict[str, Any]:
    """Rename settings to current names; parameters of the environment are unchanged."""
    return {
        RENAMED.get(key, key): _rename(value) if isinstance(value, dict) and key != "env_args" else value
        for key, value in settings.items()
    }
