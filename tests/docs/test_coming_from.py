"""Every name of engram on the page for users of other libraries exists."""

import re
from dataclasses import fields
from pathlib import Path

import engram
from engram.agents.cores.registry import core_names, core_parameters
from engram.launch.config.command_line import DRY_RUN, settings_of
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import OTHER_FLAGS
from engram.launch.train.callbacks import Callbacks
from engram.learners.algorithms.ppo import PPOSettings

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md").read_text()
SCRIPTS = re.findall(r'^(rl-[\w-]+) = "', (Path(__file__).parents[2] / "pyproject.toml").read_text(), re.MULTILINE)


def test_every_name_exists() -> None:
    flags = {f"--{name.replace('_', '-')}" for name in settings_of(RunConfig)} | {*OTHER_FLAGS, "--help", "--card"}
    named = re.findall(r"(?<![\w-])(--[a-z][\w-]*)", PAGE)
    assert DRY_RUN in named
    assert set(named) <= flags, set(named) - flags
    settings = {each.name for each in fields(PPOSettings)}
    of_ppo = re.findall(r"--algorithm-args (\w+)=", PAGE)
    assert len(of_ppo) == 6
    assert set(of_ppo) <= settings
    assert set(re.findall(r"--core-args (\w+)=", PAGE)) <= set(core_parameters("lstm"))
    assert set(re.findall(r"--core ([\w-]+)", PAGE)) <= set(core_names())
    assert set(re.findall(r"\b(rl-\w+)", PAGE)) <= set(SCRIPTS)
    assert set(re.findall(r"engram\.(\w+)", PAGE)) <= set(engram.__all__)
    assert {"on_row", "on_update", "on_checkpoint"} == {each.name for each in fields(Callbacks)}
    assert hasattr(engram.TrainedAgent, "act")
