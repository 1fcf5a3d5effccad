"""`--look-every`: pictures and numbers of the memory, and a training that does not notice."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engram.agents.cores import make_core
from engram.agents.inside import STATE_METRICS, effective_rank, over_time, recorded, statistics
from engram.launch.insight import page
from engram.launch.train import command
from engram.learners import checkpoints
from runs import TINY, rows

WORDS = [*TINY, "--sync", "--local", "--lr-schedule", "constant", "--total-steps", "288"]


def train(path: Path, *words: str) -> list[dict[str, float]]:
    command.main([*WORDS, *words, "--run-dir", str(path)])
    found = rows(path)
    return [{"step": row["step"]} | {k: v for k, v in row["metrics"].items() if k[:5] != "perf/"} for row in found]


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    plain, watched = train(tmp_path / "plain"), train(tmp_path / "watched", "--look-every", "72")
    told = [{k: v for k, v in row.items() if k.startswith("state/")} for row in watched]
    assert [{k: v for k, v in row.items() if not k.startswith("state/")} for row in watched] == plain
    assert {name for row in told for name in row} == set(STATE_METRICS)
    last = [checkpoints.latest(tmp_path / name / "checkpoints") for name in ("plain", "watched")]
    numbers = [checkpoints.load(path)["torch_rng"] for path in last if path]
    assert torch.equal(*numbers), "random numbers were drawn from training's"
    events = EventAccumulator(str(tmp_path / "watched" / "tensorboard"))
    events.Reload()
    (first, *_) = events.Images("memory")
    assert first.step == next(row["step"] for row in watched if row["step"] >= 72)
    picture = Image.open(io.BytesIO(first.encoded_image_string))
    assert picture.size == (first.width, first.height)
    assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20


def test_an_image_that_took_long_delays_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images take at most one hundredth of the run's time, but for the first one."""
    monkeypatch.setattr(page, "LARGEST_SHARE", 1e-9)
    train(tmp_path / "run", "--look-every", "72")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert len(events.Images("memory")) == 1


def test_the_effective_rank_of_known_states() -> None:
    draw = torch.Generator().manual_seed(0)
    assert effective_rank(torch.ones(20, 5)) == 0.0
    assert effective_rank(torch.outer(torch.randn(20, generator=draw), torch.randn(7, generator=draw))) == (
        pytest.approx(1.0, abs=1e-3)
    )
    q, _ = torch.linalg.qr(torch.randn(60, 3, generator=draw) - 0.5)
    q = q - q.mean(0)
    values = np.linalg.svd(q.numpy().astype(np.float64), compute_uv=False)
    p = values / values.sum()
    assert effective_rank(q + 4.0) == pytest.approx(float(np.exp(-(p * np.log(p)).sum())), rel=1e-4)


def test_norm_and_saturation_are_those_of_the_states() -> None:
    torch.manual_seed(0)
    core = make_core("lstm", 3, hidden_size=4)
    state = core.initial_state(2)
    with torch.no_grad(), recorded(core) as calls:
        for inputs in 30 * torch.randn(6, 2, 3):
            _, state = core(inputs, state)
    trace = over_time(calls, 1)
    found = statistics(trace)
    h, c = trace.after.h, trace.after.c
    assert float(c.abs().max()) > 1  # so only h is bounded
    assert found["state/norm"] == pytest.approx(float((h.square().sum(1) + c.square().sum(1)).sqrt().mean()))
    assert found["state/saturation"] == pytest.approx(float((h.abs() > 0.95).float().mean()))
    assert statistics(trace._replace(after=(), before=())) == {}
