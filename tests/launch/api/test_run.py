"""engram.train and engram.Run: real runs, the numbers of `rl-train`, and a process that is afterwards as it was."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import threadpoolctl
import torch

import engram
from engram.agents.threads import num_threads
from engram.launch.config.run_flags import parse_run
from engram.launch.train import command
from runs import TINY, last_step, rows, steps_saved, wait_for

SMALL = {
    **{"env": "boxworld", "core": "lstm", "core_args": {"hidden_size": 16}, "seed": 5, "show": False},
    **{
        "env_args": {"path_lengths": 1, "num_distractors": 0, "max_steps": 12},
        "envs_per_actor": 4,
        "envs_per_update": 4,
    },
    **{"unroll_length": 6, "log_every": 1, "conv_channels": (2,)},
}
"""TINY as settings."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    return engram.train(**SMALL, total_steps=300, run_dir=str(tmp_path_factory.mktemp("runs") / "a"))


def state_of_the_process():
    """All that a library has to leave alone."""
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "wakeup": signal.set_wakeup_fd(-1),
        "threads": torch.get_num_threads(),
        "learner": num_threads(),
        "others": {thread.name for thread in threading.enumerate()},
        "blas": sorted((each["filepath"], each["num_threads"]) for each in threadpoolctl.threadpool_info()),
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002 (the global one)
        "python": random.getstate(),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "gradients": torch.is_grad_enabled(),
        "directory": os.getcwd(),
    }


def test_it_trains_as_the_command_does(run, tmp_path):
    assert (run.reason, run.progress().running) == ("done", False)
    assert command.main([*TINY, "--local", "--total-steps", "300", "--run-dir", str(tmp_path / "b")]) == 0
    other = engram.Run(tmp_path / "b")
    ours, theirs = run.metrics, other.metrics
    learned = [
        name for name in ours if name.split("/")[0] in ("step", "loss", "episode", "policy", "vtrace", "learner")
    ]
    assert len(learned) > 10
    for name in learned:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert [path.name for path in run.checkpoints] == [path.name for path in other.checkpoints]


def test_the_process_is_afterwards_as_it_was(run, tmp_path):
    torch.set_num_threads(2)
    try:
        engram.train(**SMALL, total_steps=60, learner_threads=2, run_dir=str(tmp_path / "warm"))  # imports are done
        before = state_of_the_process()
        trained = engram.train(**SMALL, total_steps=60, learner_threads=2, run_dir=str(tmp_path / "a"))
        trained.evaluate(episodes=4)
        trained.agent()
        assert state_of_the_process() == before
    finally:
        torch.set_num_threads(1)


def test_what_is_in_a_run(run):
    assert run.config == engram.configure(
        **{name: value for name, value in SMALL.items() if name != "show"},
        local=True,
        total_steps=300,
        run_dir=str(run.path),
        precision=run.config.learner.precision,  # the one that auto chose on this machine
    )
    metrics = run.metrics
    assert metrics["step"].tolist() == [row["step"] for row in rows(run.path)]
    assert all(values.shape == metrics["step"].shape for values in metrics.values())
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(metrics)
    assert list(table.columns) == list(metrics)
    assert table["loss/total"].tolist() == metrics["loss/total"].tolist()
    assert [path.name for path in run.checkpoints] == [f"step-{step:012}" for step in steps_saved(run.path)]
    assert run.progress().fraction == 1
    assert engram.Run(run.path).reason == ""
    found = run.evaluate(episodes=30, greedy=True)
    assert found.all.episodes == 30
    assert found.estimates["return"] == engram.evaluate(run.path, episodes=30, greedy=True).estimates["return"]
    assert "return" in str(found)


def test_a_checkpoint_is_named_by_its_step(run):
    step = int(run.checkpoints[-1].name[5:])
    by_step, latest = run.evaluate(checkpoint=step, episodes=5), run.evaluate(episodes=5)
    assert by_step.estimates["return"] == latest.estimates["return"]


def test_lines_that_are_no_rows_are_left_out(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    whole = (copy / "metrics.jsonl").read_bytes()
    (copy / "metrics.jsonl").write_bytes(b'{"step": 1, "ti\n\xff\n{"step": 2}\n' + whole + b'{"step": 3')
    assert engram.Run(copy).metrics["step"].tolist() == run.metrics["step"].tolist()
    assert str(engram.Run(copy)).endswith(str(run).partition(": ")[2])


def test_resuming_gives_the_numbers_of_a_run_in_one_go(tmp_path):
    whole = engram.train(**SMALL, sync=True, lr_schedule="constant", total_steps=200, run_dir=str(tmp_path / "whole"))
    part = engram.train(**SMALL, sync=True, lr_schedule="constant", total_steps=100, run_dir=str(tmp_path / "part"))
    again = part.resume(total_steps=200, show=False)
    assert (again.path, again.progress().steps) == (part.path, whole.progress().steps)
    np.testing.assert_array_equal(again.metrics["loss/total"], whole.metrics["loss/total"])
    for settings, said in (
        ({"lr": 0.5}, "was trained with learner.lr"),
        ({"run_dir": "x"}, "run_dir has no effect"),
        ({"totalsteps": 1}, "unknown setting 'totalsteps'; did you mean: total_steps"),
    ):
        with pytest.raises(ValueError, match=said):
            part.resume(show=False, **settings)


def test_an_interrupt_ends_the_run_with_a_checkpoint(tmp_path):
    place, handler = tmp_path / "a", signal.getsignal(signal.SIGINT)  # a shell's `&` ignores the signal

    def interrupt():
        wait_for(lambda: last_step(place) > 0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    run = engram.train(**SMALL, run_dir=str(place))
    thread.join()
    assert run.reason == "SIGINT"
    assert steps_saved(place) == [run.progress().steps]
    assert signal.getsignal(signal.SIGINT) is handler


def test_it_trains_in_a_thread_that_hears_no_signals(tmp_path):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(engram.train(**SMALL, total_steps=60, run_dir=str(tmp_path / "a")))
    )
    thread.start()
    thread.join()
    assert found[0].reason == "done"


def test_a_run_in_the_background_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    long = SMALL | {"total_steps": 10**9}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engram.train, **long, wait=False, run_dir=str(tmp_path / "a")).result()
    time.sleep(1)
    assert run.progress().running
    assert run.stop().reason == "stop()"


def test_a_run_in_a_process_of_its_own(tmp_path):
    run = engram.train(**SMALL, wait=False, run_dir=str(tmp_path / "a"))
    began = run.progress()
    assert began.running
    wait_for(lambda: run.progress().steps > began.steps)
    assert "loss/total" in run.progress().metrics
    assert "running" in repr(run)
    with pytest.raises(ValueError, match="trained by another process"):
        engram.Run(run.path).stop()
    assert run.stop() is run
    assert run.reason == "stop()"
    assert steps_saved(run.path) == [run.progress().steps]
    assert not run.progress().running
    assert run.stop().reason == "stop()"

    total = run.progress().steps + 100
    again = engram.Run(run.path).resume(wait=False, total_steps=total, log_every=2, sync=False)
    wait_for(lambda: not again.progress().running)
    assert again.wait().reason == "done"  # of a process that nobody watched until its end
    assert again.progress().steps >= total


def test_a_run_with_ray_leaves_nothing_behind(tmp_path):
    names = ("signals", "threads", "torch", "environment", "directory")  # imports change the others
    before, children = state_of_the_process(), set(psutil.Process().children(recursive=True))
    run = engram.train(**SMALL, total_steps=200, local=False, run_dir=str(tmp_path / "a"))
    assert (run.reason, run.progress().running) == ("done", False)
    assert run.progress().steps >= 200
    assert run.config.local is False
    wait_for(lambda: not set(psutil.Process().children(recursive=True)) - children, 90)
    after = state_of_the_process()
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


PARENT = """
import os, sys, engram
run = engram.train("boxworld", "lstm", conv_channels=(2,), unroll_length=6, envs_per_update=4, log_every=1, wait=False,
                   run_dir=sys.argv[1])
print(run._process.process.pid, flush=True)
os._exit(0)
"""


@pytest.mark.nightly
def test_a_run_ends_with_the_process_that_started_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path / "a")], capture_output=True, text=True, timeout=120
    )
    child = int(done.stdout)
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, 60)
    assert len(steps_saved(tmp_path / "a")) == 1


def test_what_ends_another_process_is_raised_here(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ValueError, match="is not empty and contains no run"):
        engram.train(**SMALL, wait=False, run_dir=str(tmp_path / "taken"))
    with pytest.raises(ValueError, match="exists only in this process"):
        engram.train("__main__:Mine", wait=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"totl_steps": 3}, "unknown setting 'totl_steps'; did you mean: total_steps"),
        ({"zzzzzz": 3}, "unknown setting 'zzzzzz'; available: env, "),
        ({"total_steps": 1.5}, "total_steps is 1.5; expected int"),
        ({"env": 5}, "env is 5; expected a name"),
        ({"env_args": {1: 2}}, "env_args is {1: 2}; expected dict"),
        ({"pbt": {"intervl": 3}}, "unknown setting 'pbt.intervl'; did you mean: pbt.interval"),
        ({"clip_rho": 2.0}, "it is a setting of vtrace: --algorithm-args clip_rho=VALUE"),
        ({"core_args": {"hiden_size": 3}}, "no option 'hiden_size'; did you mean: hidden_size"),
        ({"ray_address": "auto"}, "ray_address is 'auto'; allowed: with local=False"),
    ],
)
def test_a_mistake_is_named_with_what_is_meant(settings, said, tmp_path):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace("{", r"\{")):
        engram.train(**SMALL | {"run_dir": str(tmp_path / "a")} | settings)
    assert not (tmp_path / "a").exists()


def test_whole_numbers_may_be_written_as_in_words():
    assert engram.configure("boxworld", "gru", total_steps=1e5).total_steps == 100_000


def test_settings_mean_what_the_flags_mean(tmp_path):
    words = (
        "--env t-maze --core concrete --preset easy --lr 2e-4 --pbt.interval 700 --conv-channels 3 4 --algorithm a2c "
        "--core-args viewport_size=4 --sync --envs-per-actor 8 --previous-action"
    )
    same = engram.configure(
        "t-maze",
        "concrete",
        preset="easy",
        lr=2e-4,
        pbt={"interval": 700},
        conv_channels=(3, 4),
        algorithm="a2c",
        core_args={"viewport_size": 4},
        sync=True,
        envs_per_actor=8,
        previous_action=True,
    )
    assert same == parse_run(words.split())


def test_importing_engram_is_cheap_and_its_names_are_found():
    program = (
        "import sys, engram; heavy = {'torch', 'ray', 'rich', 'tyro', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy; assert set(engram.__all__) <= set(dir(engram))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert all(hasattr(engram, name) for name in engram.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        engram.trian  # noqa: B018
    assert Path(engram.__file__).parent == Path(command.__file__).parents[2]
