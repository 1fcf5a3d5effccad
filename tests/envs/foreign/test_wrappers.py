"""Wrappers with running statistics of their own are refused with the flag that replaces them."""

import gymnasium
import pytest
from gymnasium import wrappers

from engram.envs.foreign import ForeignBatch, environment_maker
from engram.launch.train import command


@environment_maker
def observations() -> gymnasium.Env:
    return wrappers.TimeLimit(wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")), 20)


@environment_maker
def rewards() -> gymnasium.Env:
    return wrappers.NormalizeReward(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("name", "flag"), [("observations", "--normalise-observations"), ("rewards", "--normalise-returns")]
)
def test_a_factory_with_statistics_is_one_line_and_exit_code_2(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.run(["--env", f"{__name__}:{name}", "--local", "--total-steps", "10"])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert flag in printed
    assert "Traceback" not in printed


def test_an_id_with_statistics_is_refused() -> None:
    gymnasium.register("Normalized-v0", entry_point=observations)
    try:
        with pytest.raises(ValueError, match=r"NormalizeObservation.*--normalise-observations"):
            ForeignBatch(lambda: gymnasium.make("Normalized-v0"), 2, name="Normalized-v0")
    finally:
        del gymnasium.registry["Normalized-v0"]
