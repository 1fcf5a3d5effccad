"""Explanations of unknown settings: names from other libraries, algorithms, cores and environments.

Pure renames are in `renamed.py` (OTHER_NAMES); this file explains names whose meaning differs.
"""

from dataclasses import fields

from ....agents.cores.registry import core_parameters
from ....envs.registration import environment_parameters, find_environment, is_environment
from ....learners.algorithms.registry import algorithm_class, algorithm_names
from .renamed import OTHER_NAMES

_EXPLAINED = {
    "here --envs-per-update counts the environments of an update, which has --envs-per-update * --unroll-length "
    "samples, and --algorithm-args minibatches=N divides them (ppo)": ("batch_size", "minibatch_size"),
    "it is a setting of ppo: --algorithm-args epochs=N": ("n_epochs", "update_epochs", "num_epochs"),
    "it is a setting of ppo: --algorithm-args minibatches=N": ("num_minibatches", "n_minibatches"),
    "it is a setting of ppo: --algorithm-args clip=X": ("clip_range", "clip_coef", "ppo_clip_ratio"),
    "the size of a core is one of its options: --core-args NAME=N; docs/reference/cores.md lists every core's": (
        *("hidden_size", "rnn_size", "lstm_hidden_size"),
    ),
    "checkpoints are written at time intervals: --checkpoint-every 60s; --keep-checkpoints N keeps the newest": (
        *("save_freq", "save_interval"),
    ),
    "--video-every N records episodes while training, rl-eval RUN --gif FILE afterward": (
        *("capture_video", "save_video"),
    ),
}
MEANINGS = {name: text for text, names in _EXPLAINED.items() for name in names}
"""Explanations by the name in other libraries, written for the command line."""


def meaning(name: str, algorithm: str, core: str, env: str) -> str:
    """Explain where an unknown setting belongs, as the end of a message; empty if the name is unknown.

    Args:
        algorithm: the run's algorithm; its settings are searched first.
    """
    if name in OTHER_NAMES:
        return ""
    try:
        settings = {
            each: {field.name for field in fields(algorithm_class(each).Settings)}
            for each in (algorithm, *algorithm_names())
        }
        if name in settings[algorithm]:
            return f"it is a setting of {algorithm}: --algorithm-args {name}=VALUE"
        if name in core_parameters(core):
            return f"it is an option of {core}: --core-args {name}=VALUE"
        if is_environment(env) and name in environment_parameters(find_environment(env)[0]):
            return f"it is a parameter of {env}: --env-args {name}=VALUE"
    except ValueError:  # one of the names does not exist, which is reported elsewhere
        return MEANINGS.get(name, "")
    others = " and ".join(each for each in algorithm_names() if name in settings[each])
    elsewhere = f"it is a setting of {others}, not of {algorithm}: --algorithm-args {name}=VALUE" if others else ""
    return MEANINGS.get(name, elsewhere)
