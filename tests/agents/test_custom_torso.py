"""Custom torsos: trained, resumed, evaluated and exported by name, and refused in one line where they are wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.agents.config import TorsoConfig
from engram.agents.custom.torso import Torso
from engram.agents.specs import ArraySpec, scaled
from engram.agents.torsos import make_torso
from engram.launch.export import command as export
from engram.launch.train import command as train
from engram.learners import checkpoints
from runs import TINY

SPEC = ArraySpec((4, 5, 3), 1 / 255)


class Linear(Torso):
    """One layer over all numbers; every subclass but the last is wrong in one way."""

    def __init__(self, spec, width=6):
        super().__init__()
        self.output_size, self.scale = width, spec.scale
        self.layer = nn.Linear(int(np.prod(spec.shape)), width)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, observation):
        return self.layer(scaled(observation, self.scale).flatten(1))

    def observe(self, observation):
        self.count += len(observation)


class NoSize(Linear):
    def __init__(self, spec):
        super().__init__(spec)
        del self.output_size


class Wide(Linear):
    def forward(self, observation):
        return super().forward(observation).repeat(1, 2)


class Pair(Linear):
    def forward(self, observation):
        return super().forward(observation), None


class Whole(Linear):
    def forward(self, observation):
        return super().forward(observation).long()


class Dropping(Linear):
    def forward(self, observation):
        return nn.functional.dropout(super().forward(observation))


class Batch(Linear):
    def forward(self, observation):
        x = super().forward(observation)
        return x - x.mean(0)


class Raising(Linear):
    def forward(self, observation):
        raise KeyError("board")


class Module(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("NoSize", {}, "output_size is not set; expected a whole number"),
        ("Wide", {}, r"forward returned a tensor \[3, 12\]; expected a tensor \[3, 6\]: batch, output_size"),
        ("Pair", {}, "forward returned tuple; expected a tensor"),
        ("Whole", {}, "forward returned torch.int64; expected floating-point"),
        ("Dropping", {}, "expected a deterministic function of each observation alone"),
        ("Batch", {}, "for an observation outside its batch"),
        ("Raising", {}, "forward raised KeyError: 'board'"),
        ("Module", {}, "is not a subclass of engram.agents.custom.torso.Torso"),
        ("Missing", {}, "cannot load torso .*Missing"),
        ("Linear", {"widht": 3}, "has no option 'widht'; did you mean: width"),
    ],
)
def test_a_wrong_torso_is_named_with_what_was_expected(name, args, said):
    with pytest.raises(ValueError, match=said):
        make_torso(SPEC, TorsoConfig(torso=f"{__name__}:{name}", torso_args=args))


def test_unknown_names_and_options_without_a_torso_are_refused():
    with pytest.raises(ValueError, match="unknown torso 'gird'; did you mean: grid"):
        TorsoConfig(torso="gird")
    with pytest.raises(ValueError, match=r"torso_args is .*allowed: with a custom torso, not 'grid'"):
        TorsoConfig(torso_args={"width": 3})


def test_the_random_numbers_stay_as_they_are_but_for_the_weights():
    torch.manual_seed(0)
    plain = Linear(SPEC), torch.rand(3)
    torch.manual_seed(0)
    checked = make_torso(SPEC, TorsoConfig(torso=f"{__name__}:Linear")), torch.rand(3)
    torch.testing.assert_close(checked[0].layer.weight, plain[0].layer.weight, rtol=0, atol=0)
    torch.testing.assert_close(checked[1], plain[1], rtol=0, atol=0)


MODULE = '''
import torch
from torch import nn
from engram.agents.specs import scaled
from engram.agents.custom.torso import Torso

class Columns(Torso):
    """A layer per column of an image, added up."""

    def __init__(self, spec, width=8):
        super().__init__()
        rows, _, channels = spec.shape
        self.scale, self.output_size = spec.scale, width
        self.columns = nn.Linear(rows * channels, width)

    def forward(self, observation):
        x = scaled(observation, self.scale)
        return torch.relu(self.columns(x.transpose(1, 2).flatten(2)).sum(1))
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the working directory, as a user has it."""
    (tmp_path / "columns_torso.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "columns_torso:Columns"
    sys.modules.pop("columns_torso", None)


def weights(run: Path):
    path = checkpoints.latest(run / "checkpoints")
    assert path is not None
    return checkpoints.load(path)["members"][0]["learner"]["agent"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "where",
    [["--local"], pytest.param(["--num-actors", "1"], marks=pytest.mark.nightly)],
    ids=["local", "ray"],
)
def test_a_run_trains_resumes_evaluates_and_exports(module, where, tmp_path):
    words = [*TINY, "--torso", module, "--torso-args", "width=5", "--sync", "--lr-schedule", "constant", *where]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert train.main([*words, "--total-steps", "120", "--run-dir", str(part)]) == 0
    first = weights(part)
    assert first["torso.columns.weight"].shape[0] == 5
    if where == ["--local"]:
        assert train.main(["--resume", str(part), "--total-steps", "240"]) == 0
        assert train.main([*words, "--total-steps", "240", "--run-dir", str(whole)]) == 0
        torch.testing.assert_close(weights(part), weights(whole), rtol=0, atol=0)
        assert not torch.equal(first["torso.columns.weight"], weights(part)["torso.columns.weight"])
        assert engram.evaluate(part, episodes=3).all.episodes == 3
        assert export.main([str(part), "--torch-export", str(tmp_path / "agent.pt2")]) == 0
