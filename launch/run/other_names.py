"""Settings by the names that they have in other libraries: what is meant where a name is unknown."""

OTHER_NAMES = {
    "learning_rate": "lr",
    "gamma": "discount",
    "steps": "total_steps",
    "timesteps": "total_steps",
    "total_timesteps": "total_steps",
    "num_envs": "envs_per_actor",
    "n_envs": "envs_per_actor",
    "num_workers": "num_actors",
    "n_steps": "unroll_length",
    "ent_coef": "entropy_cost",
    "vf_coef": "value_cost",
    "log_dir": "run_dir",
    "logdir": "run_dir",
    "output_dir": "run_dir",
    "world": "env",
}
