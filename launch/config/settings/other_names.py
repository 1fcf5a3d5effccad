"""Explanations of unknown settings: names from other libraries, algorithms, cores and environments.

Pure renames are in `base/messages.py` (OTHER_NAMES); this file explains names whose meaning differs.
"""

import re
from dataclasses import fields

from ....agents.cores.registry import core_parameters
from ....base.messages import OTHER_NAMES
from ....envs.registration import environment_parameters, find_environment, is_environment
from ....learners.algorithms.registry import algorithm_class, algorithm_names

_EPOCHS = "it is a setting of ppo: --algorithm-args epochs=N"
_MINIBATCHES = "it is a setting of ppo: --algorithm-args minibatches=N"
_CLIP = "it is a setting of ppo: --algorithm-args clip=X"
_CORE = "the size of a core is one of its options: --core-args NAME=N; docs/reference/cores.md lists every core's"
_BATCH = (
    "here --envs-per-update counts the environments of an update, which has --envs-per-update * --unroll-length "
    "samples, and --algorithm-args minibatches=N divides them (ppo)"
)
_SAVE = "checkpoints are written at time intervals: --checkpoint-every 60s; --keep-checkpoints N keeps the newest"
_VIDEO = "--video-every N records episodes while training, rl-eval RUN --gif FILE afterward"
MEANINGS = {
    "batch_size": _BATCH,
    "minibatch_size": _BATCH,
    "n_epochs": _EPOCHS,
    "update_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "num_minibatches": _MINIBATCHES,
    "n_minibatches": _MINIBATCHES,
    "clip_range": _CLIP,
    "clip_coef": _CLIP,
    "ppo_clip_ratio": _CLIP,
    "hidden_size": _CORE,
    "rnn_size": _CORE,
    "lstm_hidden_size": _CORE,
    "save_freq": _SAVE,
    "save_interval": _SAVE,
    "capture_video": _VIDEO,
    "save_video": _VIDEO,
}
"""Explanations by the name in other libraries, written for the command line."""


def meaning(name: str, algorithm: str, core: str, env: str) -> str:
    """Explain where an unknown setting belongs, as the end of a message; empty if the name is unknown.

    Args:
        algorithm: the run's algorithm; its settings are searched first.
    """
    if name in OTHER_NAMES:
        return ""
    try:
        if name in _settings(algorithm):
            return f"it is a setting of {algorithm}: --algorithm-args {name}=VALUE"
        if name in core_parameters(core):
            return f"it is an option of {core}: --core-args {name}=VALUE"
        if is_environment(env) and name in environment_parameters(find_environment(env)[0]):
            return f"it is a parameter of {env}: --env-args {name}=VALUE"
    except ValueError:  # one of the names does not exist, which is reported elsewhere
        return MEANINGS.get(name, "")
    if name in MEANINGS:
        return MEANINGS[name]
    others = [other for other in algorithm_names() if name in _settings(other)]
    if not others:
        return ""
    return f"it is a setting of {' and '.join(others)}, not of {algorithm}: --algorithm-args {name}=VALUE"


def in_python(text: str) -> str:
    """Rewrite the flags in an explanation as arguments of a Python call."""
    text = re.sub(r"--(\w+)-args (\w+)=(\w+)", r"\1_args={'\2': \3}", text)
    return re.sub(r"--(\w[\w-]*)", lambda flag: flag[1].replace("-", "_"), text)


def _settings(algorithm: str) -> set[str]:
    return {field.name for field in fields(algorithm_class(algorithm).Settings)}
