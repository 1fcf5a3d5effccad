"""`rl-train` as a user runs it: exact repetition and resumption, signals, and mistakes met with one clear line."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runs
from engram.base.errors import EngramError
from engram.launch.train import command as train
from runs import family, gone, wait_for

TINY = [*runs.TINY, "--local"]


def rows(run: Path) -> list[dict[str, float]]:
    """Metrics by step, without those that depend on the clock."""
    return [
        {"step": row["step"]} | {k: v for k, v in row["metrics"].items() if not k.startswith("perf/")}
        for row in runs.rows(run)
    ]


def run_train(*words: object) -> int:
    return train.main([str(word) for word in words])


@pytest.mark.parametrize("mode", [["--sync"], ["--algorithm", "a2c"], []], ids=["sync", "a2c", "taking turns"])
def test_one_seed_gives_one_run(tmp_path: Path, mode: list[str]) -> None:
    for name in ("a", "b"):
        assert run_train(*TINY, *mode, "--total-steps", 300, "--run-dir", tmp_path / name) == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert run_train(*TINY, *mode, "--total-steps", 300, "--run-dir", tmp_path / "c", "--seed", 6) == 0
    assert rows(tmp_path / "a") != rows(tmp_path / "c")


@pytest.mark.parametrize(("algorithm", "actors"), [("vtrace", 2), ("a2c", 1)])
def test_a_resumed_run_gives_the_numbers_of_the_uninterrupted_one(tmp_path: Path, algorithm: str, actors: int) -> None:
    words = [*TINY, "--sync", "--algorithm", algorithm, "--num-actors", actors, "--lr-schedule", "constant"]
    words += ["--envs-per-update", 4 * actors]
    assert run_train(*words, "--total-steps", 500, "--run-dir", tmp_path / "whole") == 0
    assert run_train(*words, "--total-steps", 200, "--run-dir", tmp_path / "parts") == 0
    assert run_train("--resume", tmp_path / "parts", "--total-steps", 350) == 0
    assert run_train("--resume", tmp_path / "parts", "--total-steps", 500) == 0
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_resume_does_not_depend_on_the_number_of_actors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "--sync", "--num-actors", 2, "--envs-per-update", 8, "--run-dir", tmp_path / "run"]
    assert run_train(*words, "--total-steps", 100) == 0
    assert run_train("--resume", tmp_path / "run", "--total-steps", 200, "--num-actors", 1) == 0
    assert rows(tmp_path / "run")[-1]["step"] >= 200
    assert "1 actors instead of 2" in capfd.readouterr().out


def test_resuming_a_finished_run_trains_no_further(run: Path) -> None:
    before = rows(run)
    assert run_train("--resume", run) == 0
    assert rows(run) == before


def start(run: Path, *words: object) -> subprocess.Popen[str]:
    command = [runs.RL_TRAIN, *TINY, "--total-steps", 10**9, "--run-dir", run, *words]
    # As from a shell's `&`: the child starts with SIGINT ignored and must still listen to it.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, previous)
    wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text())
    return process


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.nightly) for each in (signal.SIGTERM, signal.SIGUSR1))],
)
def test_a_signal_stops_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path / "run")
    process.send_signal(number)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert f"stopped ({number.name})" in output
    steps = rows(tmp_path / "run")[-1]["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step-{int(steps):012d}").is_dir()


@pytest.mark.nightly
def test_a_run_on_ray_resumes_after_kill_9_and_leaves_no_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, "--checkpoint-every", 0.2, "--num-actors", 2, "--no-local")
    wait_for(lambda: any((run / "checkpoints").glob("step-*")))
    killed = family(process.pid)
    assert any("raylet" in " ".join(p.cmdline()) for p in killed)
    process.kill()
    process.wait()
    wait_for(lambda: gone(killed), seconds=90)

    steps = rows(run)[-1]["step"]
    command = [runs.RL_TRAIN, "--resume", str(run), "--total-steps", "2000000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: rows(run)[-1]["step"] > steps)
    stopped = family(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "SIGTERM received at" not in output
    wait_for(lambda: gone(stopped), seconds=90)


def test_another_configuration_does_not_touch_a_run(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(EngramError, match=r"contains a run; to continue it"):
        run_train(*TINY, "--total-steps", 100, "--run-dir", run, "--lr", 0.123)
    with pytest.raises(EngramError, match=r"--resume can change"):
        run_train("--resume", run, "--lr", 0.123)
    with pytest.raises(EngramError, match=r"--run-dir has no effect with --resume"):
        run_train("--resume", run, "--run_dir", run.with_name("other"))
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_configuration_of_another_version_is_refused_by_name(run: Path) -> None:
    config = run / "config.toml"
    config.write_text("learning_speed = 1\n" + config.read_text())
    with pytest.raises(EngramError, match=r"config.toml: unknown setting 'learning_speed'"):
        run_train("--resume", run)


def test_config_file_repeats_a_run(run: Path, tmp_path: Path) -> None:
    assert run_train("--config", run / "config.toml", "--run-dir", tmp_path / "b") == 0
    assert rows(run) == rows(tmp_path / "b")


def test_resume_passes_over_a_damaged_checkpoint(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_train("--resume", run, "--total-steps", 200)
    newest = sorted((run / "checkpoints").iterdir())[-1]
    data = bytearray((newest / "tensors.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "tensors.pt").write_bytes(data)
    assert run_train("--resume", run, "--total-steps", 300) == 0
    assert newest.name in caplog.text
    assert rows(run)[-1]["step"] >= 300


def test_a_terminal_shows_a_word_before_anything_large_is_imported() -> None:
    terminal, end = pty.openpty()
    program = (
        "import sys; from engram.launch import entry; heavy = {'torch', 'ray', 'numba'}\n"
        "class Out:\n"
        "    def write(self, text):\n"
        "        text.strip() and sys.__stdout__.write(f'{text} {sorted(heavy & set(sys.modules))}')\n"
        "    def flush(self): sys.__stdout__.flush()\n"
        "    def isatty(self): return sys.__stdout__.isatty()\n"
        "sys.stdout = Out(); entry.rl_train(['--lern', '3'])"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, stdout=end, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("rl-train: unknown flag '--lern'")
    assert os.read(terminal, 1000).decode().startswith("starting: loading torch takes a few seconds []")


def test_the_farewell_has_the_result_and_commands_that_work_without_activation(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    command = [runs.RL_TRAIN, *TINY, "--local", "--total-steps", "400", "--run-dir", str(tmp_path / "my run")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600).stdout
    lines = dict(line.strip().split(maxsplit=1) for line in said.splitlines() if line.startswith("  "))
    assert re.fullmatch(r"return -?[\d.]+, solved [\d.]+% \(last \d+ training episodes\)", lines["result"])
    evaluation = lines["evaluate"].replace("--episodes 1000", "--episodes 2")
    subprocess.run(evaluation, shell=True, env=environment, check=True, capture_output=True, timeout=600)
    assert (tmp_path / "my run" / "episode.gif").stat().st_size > 0
    tensorboard = lines["curves"].partition(" --logdir")[0]
    subprocess.run(f"test -x {tensorboard}", shell=True, env=environment, check=True)
