"""A core of a user's own that is wrong is refused at the start: the method, what it returned, what was expected."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from engram.agents.cores.core import Core
from engram.agents.cores.registry import make_core
from engram.launch.entry import rl_train

ME = __name__


class State(NamedTuple):
    h: Tensor


class Right(Core):
    """The right one that the others differ from."""

    def __init__(self, input_size: int, hidden_size: int = 4) -> None:
        super().__init__()
        self.output_size = hidden_size
        self.layer = nn.Linear(input_size, hidden_size)

    def initial_state(self, batch_size: int) -> Any:
        return State(torch.zeros(batch_size, self.output_size))

    def forward(self, inputs: Tensor, state: Any) -> Any:
        h = torch.tanh(self.layer(inputs) + state.h)
        return h, State(h)


class NoSize(Right):
    def __init__(self, input_size: int) -> None:
        super().__init__(input_size)
        del self.output_size


class NoForward(Core):
    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.output_size = 3

    def initial_state(self, batch_size: int) -> Any:
        return State(torch.zeros(batch_size, 3))


class ListState(Right):
    def initial_state(self, batch_size: int) -> Any:
        return [torch.zeros(batch_size, 4)]


class NoBatch(Right):
    def initial_state(self, batch_size: int) -> Any:
        return State(torch.zeros(1, 4))


class OutputAlone(Right):
    def forward(self, inputs: Tensor, state: Any) -> Any:
        return super().forward(inputs, state)[0]


class NarrowOutput(Right):
    def forward(self, inputs: Tensor, state: Any) -> Any:
        output, state = super().forward(inputs, state)
        return output[:, :3], state


class OtherState(Right):
    def forward(self, inputs: Tensor, state: Any) -> Any:
        output, state = super().forward(inputs, state)
        return output, State(state.h[:, :2])


class Raises(Right):
    def forward(self, inputs: Tensor, state: Any) -> Any:
        return inputs @ torch.zeros(99, 2), state


class RaisesWhenMade(Right):
    def __init__(self, input_size: int) -> None:
        raise RuntimeError("no weights today")


@pytest.mark.parametrize(
    ("core", "said"),
    [
        (NoSize, r"NoSize.output_size is not set; expected a whole number"),
        (NoForward, r"NoForward.forward raised NotImplementedError: every core defines forward"),
        (
            ListState,
            r"ListState.initial_state\(4\) returned a wrong state: a state is a NamedTuple of tensors, not list",
        ),
        (NoBatch, r"NoBatch.initial_state\(4\) returned a wrong state: .* shape \[1, 4\] for a batch of 4"),
        (OutputAlone, r"OutputAlone.forward returned a Tensor; expected \(output \[4, 4\], state\)"),
        (NarrowOutput, r"NarrowOutput.forward returned the output \[4, 3\]; expected \(output \[4, 4\], state\)"),
        (OtherState, r"OtherState.forward returned the state State\(h \[2\]\); initial_state has State\(h \[4\]\)"),
        (
            RaisesWhenMade,
            r"cannot make core 'mine:RaisesWhenMade': __init__ raised RuntimeError: no w",
        ),
    ],
)
def test_a_wrong_core_is_refused_with_the_method_and_what_was_expected(
    core: type[Core], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[ME])
    with pytest.raises(ValueError, match=said):
        make_core(f"mine:{core.__name__}", 5)


@pytest.mark.parametrize("value", ["nan", float("nan"), float("inf"), -float("inf"), "many"])
@pytest.mark.parametrize(("core", "option"), [("lstm", "memory_span"), ("rmc", "input_bias"), ("lstm", "hidden_size")])
def test_options_of_cores_are_finite_numbers(core: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{option} is .*; allowed: "):
        make_core(core, 5, **{option: value})


def test_an_exception_shows_the_frames_that_are_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[ME])
    with pytest.raises(ValueError, match=r"Raises.forward raised RuntimeError: mat1 and mat2") as problem:
        make_core("mine:Raises", 5)
    lines = str(problem.value).splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        line for line in lines if "test_own_cores.py" in line
    ]
    assert "inputs @ torch.zeros(99, 2)" in lines[-2]


def test_a_right_core_is_made_and_the_random_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[ME])
    torch.manual_seed(0)
    Right(5)
    expected = torch.rand(1)
    torch.manual_seed(0)
    make_core("mine:Right", 5)
    assert torch.equal(torch.rand(1), expected)


def test_rl_train_refuses_it_in_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("from engram.agents.cores import Core\nclass Mine(Core):\n    pass\n1 / 0\n")
    words = ["--env", "boxworld", "--core", "own:Mine", "--local", "--run-dir", "run"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        rl_train(words)
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert "importing core own:Mine raised ZeroDivisionError" in errors
    assert "own.py" in errors
    assert not (tmp_path / "run").exists()
