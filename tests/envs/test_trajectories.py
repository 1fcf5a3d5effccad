"""Every environment plays as it always has: hashes of what seeded games show and pay, recorded once.

A change that is meant renews them: ENGRAM_RECORD=1 pytest tests/envs/test_trajectories.py
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engram.envs.registration import environment_names, make_batch

RECORDED = Path(__file__).parent / "recorded" / "trajectories.json"
STEPS, COPIES, SEED = 1100, 4, 3
"""Long enough for every environment to end an episode and start the next."""

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("boxworld", {"path_lengths": 3, "num_distractors": (1, 2), "branch_length": 3, "grid_size": 14, "max_steps": 50}),
    ("mini-pacman", {"task": "avoid", "num_ghosts": 3, "frame_cap": 300}),
    ("mini-pacman", {"task": "hunt", "num_pills": 9, "ghost_speed": 0.9}),
    ("mini-pacman", {"task": "ambush", "ghost_randomness": 0.5}),
    ("mini-pacman", {"task": "rush", "num_pills": 30, "power_steps": 5}),
    ("maze", {"size": 7, "num_steps": 60, "previous_action": True, "show_goal": True, "wall_penalty": 0.25}),
    ("pomdp-graph", {"variant": "released", "split": "test", "assignment": "fixed", "first_index": 7}),
    ("pomdp-graph", {"num_states": 7, "num_actions": 4, "num_graphs": 20, "graph_seed": 5, "patience": 3}),
    ("cued-catch", {"num_trials": 9, "initial_cue_duration": 2, "cue_duration": 3, "reward_free_trials": 2}),
    ("t-maze", {"difficulty": 0, "half_width": 5, "limbo_time": 0, "teleport_delay": 1, "timeout_frames": 150}),
    ("t-maze", {"difficulty": 5, "limbo_time": 12, "teleport_delay": 4, "timeout_frames": -1}),
    ("sequence-recall", {"sequence_length": 2, "demo_light_on_frames": 3, "demo_light_off_frames": 2}),
]
CASES = [*((name, {}) for name in environment_names()), *VARIANTS]
LATER_FIELDS = {"mini-pacman": {"reflection"}, "t-maze": {"begun", "decisions", "correct"}}
"""Fields of states that were added after the recording, zero in these games."""


def digest(*arrays: np.ndarray) -> str:
    summary = hashlib.sha256()
    for array in arrays:
        summary.update(f"{array.dtype.str}{array.shape}".encode())
        summary.update(np.ascontiguousarray(array).tobytes())
    return summary.hexdigest()[:16]


def play(name: str, parameters: dict[str, Any]) -> dict[str, str]:
    own = {name: value for name, value in parameters.items() if name != "first_index"}
    env = make_batch(name, COPIES, parameters.get("first_index", 0), **own)
    actions = np.random.default_rng(SEED).integers(env.single_action_space.n, size=(STEPS, COPIES))
    first, _ = env.reset(seed=SEED)
    observation = np.zeros((STEPS, *first.shape), first.dtype)
    reward = np.zeros((STEPS, COPIES), np.float32)
    terminated, truncated = np.zeros((2, STEPS, COPIES), np.bool_)
    facts = np.zeros((STEPS, COPIES, len(env.episode_fields)), np.float32)
    for t in range(STEPS):
        env.step_into(actions[t], observation[t], reward[t], terminated[t], truncated[t])
        facts[t] = env.episode_facts(np.arange(COPIES))
    saved, later = env.save(), LATER_FIELDS.get(name.removesuffix("-twin"), set())
    assert not any(saved[key].any() for key in later)
    return {
        "observation": digest(first, observation),
        "reward": digest(reward),
        "ends": digest(terminated, truncated),
        "facts": digest(facts),
        "state": digest(*(saved[key] for key in sorted({*env.state._fields} - later))),
    }


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[f"{name} {given}" for name, given in CASES])
def test_games_go_on_as_recorded(name: str, parameters: dict[str, Any]) -> None:
    key, played = f"{name} {json.dumps(parameters)}", play(name, parameters)
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("ENGRAM_RECORD") == "1":
        RECORDED.write_text(json.dumps(recorded | {key: played}, indent=1, sort_keys=True) + "\n")
    else:
        assert played == recorded[key]
