"""The learner's whole update on a device that refuses to be waited for, against the same on the CPU."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.agents.cores import core_names
from engram.agents.cores.compiled_steps import compile_steps
from engram.learners import learner as learner_module
from engram.learners.config import LearnerConfig
from engram.learners.device import WARM_UP, Recorded, changing
from engram.learners.learner import Learner

SUPPORT = Path(__file__).parents[1] / "support"
COMPARED = [
    *(f"core {name}" for name in core_names()),
    *(f"algorithm {name}" for name in ("vtrace", "a2c", "ppo")),
    *("bptt", "rmsprop", "tf32", "sent ahead", "acted here", "acted on another", "broken adam", "broken rmsprop_tf"),
]

OPERATIONS = {
    "agalite": 11632,
    "concrete": 1535,
    "conv-lstm": 1409,
    "delta-net": 7416,
    "elman": 835,
    "feedforward": 548,
    "ffm": 1014,
    "frame-stack": 961,
    "fwm": 3377,
    "gru": 1277,
    "gtrxl": 1999,
    "ind-rnn": 1556,
    "lru": 1202,
    "lstm": 1295,
    "mamba2": 6361,
    "mgu": 1220,
    "min-gru": 1190,
    "mlstm": 6037,
    "mnm-g": 4717,
    "mnm-p": 4649,
    "parallel": 1535,
    "rmc": 3241,
    "rtu": 1398,
    "s5": 6084,
    "shm": 4985,
    "slstm": 1981,
}
"""Operations of an update of 12 steps, by core; another version of torch may need a few more."""


@pytest.fixture(scope="module")
def cases():
    """Findings of tests/support/learn_on_stand_in.py, in a process of its own: torch keeps a new device for good."""
    words = [sys.executable, str(SUPPORT / "learn_on_stand_in.py")]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("case", COMPARED)
def test_an_update_waits_for_nothing_and_is_that_of_the_cpu(cases, case):
    """One copy in for each batch, none out before metrics are read; metrics and weights differ by rounding."""
    found = cases[case]
    assert "error" not in found, found["error"]
    assert (found["in"], found["out"]) == (found["updates"], 0)
    assert found["metrics"] < 1e-4
    assert found["weights"] < 2e-5
    assert found["steps"][0] == found["steps"][1]
    assert found["skipped"] == ([2, 2] if case.startswith("broken") else [0, 0])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "why"),
    [("peeking", "_local_scalar_dense"), ("masking", "index by a mask"), ("mixing", "on the host")],
)
def test_a_core_that_makes_the_processor_wait_is_found(cases, case, why):
    assert why in cases[case].get("refused", "")


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["population", "population together"])
def test_members_learn_copy_and_resume_on_the_device(cases, case):
    assert cases[case] == {"same": True, "updates": [6, 6]}


@pytest.mark.nightly
def test_two_learners_on_the_device_equal_one(cases):
    found = cases["two learners"]
    assert "error" not in found, found["error"]
    assert found["weights"] < 2e-5
    assert (found["same"], found["updates"]) == (True, [3, 3])


@pytest.mark.nightly
def test_a_replayed_update_reads_everything_from_where_it_was_recorded(cases):
    assert cases["recorded"] == {"replays": 3, "same": True}


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch below 2.9 has other flags")
def test_forward_and_backward_pass_have_the_precision_that_is_configured(cases):
    """Also where the process has set another one, which it has again after the update."""
    assert cases["flags"] == {
        "float32": [["ieee"] * 3, ["ieee"] * 3, ["tf32"] * 3],
        "tf32": [["tf32"] * 3, ["tf32"] * 3, ["ieee"] * 3],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("core", core_names())
def test_an_update_starts_no_more_operations_than_its_budget(cases, core):
    """Starting an operation takes a GPU longer than computing a small one; an update of 12 steps."""
    assert cases[f"core {core}"]["operations"] <= 1.05 * OPERATIONS[core]


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["acting", "acting together"])
def test_a_thread_acts_on_a_stream_of_its_own(cases, case):
    """No tensor is read before it is written or reused too early; weights are those of a run that acts on the CPU.

    The acting thread waits for actions alone: they are all that leaves the device.
    """
    found = cases[case]
    assert "error" not in found, found["error"]
    assert found["weights"] < 1e-5
    assert found["hazards"] == []
    assert "actors" not in found["blocked"]
    if case == "acting":  # a population reads more
        assert found["copied"] == found["actions"]


def make(**config):
    factory = ActorFactory(
        env="boxworld",
        env_args={"path_lengths": 1, "num_distractors": 0, "max_steps": 10},
        agent=AgentConfig(core="lstm", core_args={"hidden_size": 8}),
        num_envs=3,
        unroll_length=8,
        seed=2,
    )
    torch.manual_seed(0)
    actor = factory.make_actor(0)
    learner = Learner(factory.make_agent(actor.batch), LearnerConfig(**config), total_steps=10_000)
    return learner, [actor.unroll() for _ in range(WARM_UP + 3)]


def test_metrics_that_wait_are_those_that_are_read_at_once():
    (now, batches), (later, _) = make(), make()
    for batch in batches:
        later.learn(batch)
    assert later.read() == [now.step(batch) for batch in batches]
    assert later.read() == []


def test_results_of_replays_do_not_overwrite_each_other():
    """A graph writes every result to the same place, and metrics may be read updates later."""

    def record(work):
        place = work()
        return lambda: place.copy_(work()), place

    _, batches = make()
    update = Recorded(lambda batch, _: batch.agent.logits.sum(), list, record)
    results = [update(batch, []) for batch in batches]
    assert results == [batch.agent.logits.sum() for batch in batches]


def test_nothing_else_uses_the_device_while_an_update_is_recorded():
    lock, locked = threading.Lock(), []

    def record(work):
        locked.append(lock.locked())
        place = work()
        return lambda: locked.append(lock.locked()), place

    _, batches = make()
    update = Recorded(lambda batch, _: batch.agent.logits.sum(), list, record)
    update.alone = lock
    for batch in batches[: WARM_UP + 1]:
        update(batch, [])
    assert locked == [True, False]


@pytest.mark.nightly
def test_a_compiled_step_is_part_of_a_recorded_update(monkeypatch, capfd):
    """On the CPU: the compiler cannot trace tensors of the stand-in device."""
    monkeypatch.setattr(learner_module, "compile_steps", partial(compile_steps, backend="aot_eager"))
    (plain, batches), (there, _) = make(compile=True), make(compile=True)
    replays = []

    def record(work):
        result = torch.zeros(1, 12)
        return lambda: replays.append(result.copy_(work())), result

    there.recorded = Recorded(there._learn, lambda: changing(there.agent, there.optimizer), record)
    rows = [[learner.step(batch) for batch in batches] for learner in (plain, there)]
    assert rows[0] == rows[1]
    assert len(replays) == 3
    assert "LSTM compiled in" in capfd.readouterr().err
    assert there.agent.core.unroll._works


def test_an_update_that_cannot_be_recorded_is_done_and_says_why(capfd):
    (plain, batches), (other, _) = make(), make()

    def refuse(work):
        raise RuntimeError("no such\ngraph")

    other.recorded = Recorded(other._learn, list, refuse)
    assert [plain.step(batch) for batch in batches] == [other.step(batch) for batch in batches]
    said = capfd.readouterr().err.strip().splitlines()
    message = "engram: the update is not recorded; it runs one operation at a time: RuntimeError: no such graph"
    assert said == [message]


def test_a_recording_of_nothing_is_found_and_leaves_the_update_as_it_is(capfd):
    """A graph of another device's stream is empty: the first replay, which is compared with an update, is the last."""
    (plain, batches), (other, _), replays = make(), make(), []

    def record(work):
        return lambda: replays.append(work), torch.zeros(1, 12)

    other.recorded = Recorded(other._learn, lambda: changing(other.agent, other.optimizer), record)
    assert [plain.step(batch) for batch in batches] == [other.step(batch) for batch in batches]
    assert len(replays) == 1
    assert "its replay differs from the update itself" in capfd.readouterr().err


def test_without_cuda_a_recording_is_refused_in_one_line(capfd):
    learner, batches = make(cuda_graph=True)
    learner.step(batches[0])
    assert "--cuda-graph has no effect on cpu" in capfd.readouterr().err


def test_under_autocast_heads_are_bfloat16_and_the_memory_float32():
    """Effects of `--precision bf16` on a GPU."""
    learner, (batch, *_) = make()
    agent, seen = learner.agent, []
    agent.policy.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        agent.unroll(batch.env, batch.agent.action, batch.initial_state)
    assert seen == [(torch.float32, torch.bfloat16)]
