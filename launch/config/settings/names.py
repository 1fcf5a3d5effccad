"""Names of settings in earlier versions and in other libraries (names.toml)."""

import tomllib
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
_RENAMED: dict[str, str] = _TABLES["renamed"]
OTHER_NAMES: dict[str, str] = {name: ours for ours, names in _TABLES["other_names"].items() for name in names}
MEANINGS: dict[str, str] = {name: entry["text"] for entry in _TABLES["explained"] for name in entry["names"]}


def upgraded(settings: dict[str, Any], default_algorithm: str) -> dict[str, Any]:
    """Convert the settings of a run to current names and paths."""
    settings = _rename({"envs_per_update" if key == "batch_size" else key: x for key, x in settings.items()})
    if isinstance(learner := settings.get("learner"), dict):
        algorithm, former = learner.get("algorithm", default_algorithm), _TABLES["moved"]
        moved = {key: learner[key] for key, reader in former.items() if key in learner and reader == algorithm}
        learner = {key: value for key, value in learner.items() if key not in former}
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
        _RENAMED.get(key, key): _rename(value) if isinstance(value, dict) and key != "env_args" else value
        for key, value in settings.items()
    }
