"""Modules that a configuration names and that are imported when it is used."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def named_modules(config: Mapping[str, Any]) -> list[str]:
    """Modules that a run's saved configuration would import besides engram, as `setting = module:name`."""
    agent, learner = (config.get(part) for part in ("agent", "learner"))
    values = {
        "env": config.get("env"),
        "core": agent.get("core") if isinstance(agent, Mapping) else None,
        "algorithm": learner.get("algorithm") if isinstance(learner, Mapping) else None,
    }
    return [f"{name} = {value}" for name, value in values.items() if isinstance(value, str) and ":" in value]


def announce_imports(config: Mapping[str, Any], file: Path, fetched: bool = False) -> None:
    """Say on stderr what a configuration file that is not the user's own will import."""
    named = named_modules(config)
    whose = "was fetched" if fetched else "belongs to another user"
    if named and (fetched or file.stat().st_uid != os.getuid()):
        print(f"{file} {whose}; it imports modules found on this machine: {', '.join(named)}", file=sys.stderr)
