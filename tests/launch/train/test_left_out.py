"""Updates that are left out are reported once, and by rl-doctor."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.launch.doctor import command as doctor
from engram.launch.train import command


class Faulty(gymnasium.Env):
    """Returns nan from its third step on: as an observation or as a reward."""

    def __init__(self, what: str = "observation") -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
        self.what, self.time = what, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        bad = np.nan if self.time > 2 else 0.0
        observation = np.full(2, bad if self.what == "observation" else 0.0, np.float32)
        return observation, bad if self.what == "reward" else 1.0, self.time == 5, False, {}


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_one_warning_and_rl_doctor_name_what_to_check(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no cell of the table wraps
    env, run = f"{__name__}:Faulty", str(tmp_path / "run")
    words = ["--env", env, "--env-args", f"what={what}", "--core", "gru", "--core-args", "hidden_size=4", "--local"]
    words += ["--unroll-length", "8", "--envs-per-actor", "2", "--total-steps", "200", "--log-every", "16"]
    assert command.main([*words, "--run-dir", run]) == 0
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("updates are skipped: the loss or its gradient is not finite") == 1
    doctor.main([run])
    advice = " ".join(capsys.readouterr().out.split())
    assert "skipped because the loss was not finite" in advice
    assert f"{env} returned nan" in advice
