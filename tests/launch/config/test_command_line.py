"""Words that a person may give any command: one line for a mistake, which says what is allowed, and exit code 2."""

from pathlib import Path

import pytest
import torch

import engram
from engram.base.units import count
from engram.launch import entry
from engram.launch.config.command_line import dashed, flags_of, value_of
from engram.launch.config.plain import from_dict, to_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.runs.directory import RunDirectory
from runs import TINY

COMMANDS = [name for name in entry.FOLDERS if name != "rl-compare"]


def run(command: str, *words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        entry.run(command, list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code


MISTAKES = [
    ("rl-train --enw boxworld", "unknown flag '--enw'; did you mean: --env"),
    ("rl-population RUN --picture a.png", "unknown flag '--picture'; did you mean: --plot"),
    ("rl-train --algorithm sarsa", "unknown algorithm 'sarsa'; available: a2c"),
    ("rl-train --device gpu", "device is 'gpu'; allowed: auto, cpu, cuda, cuda:N"),
    (
        "rl-train --config {empty} --total-steps 1",
        "empty.toml: expected TOML, as a run's config.toml: it is empty",
    ),
    ("rl-train --config {good} --preset easy --total-steps 1", "--preset easy has no effect with --config"),
    ("rl-train --config {unlike}", "unknown setting 'zzzzzz'; available: "),
    (
        "rl-train --seed 100000000000000000000000000",
        "seed is 100000000000000000000000000; allowed: 0..18446744073709551615",
    ),
    ("rl-train --seed -1", "seed is -1; allowed: 0..18446744073709551615"),
    ("rl-train --time-horizon 99999999999999999999999", "99999999999999999999999; allowed: 0..9223372036854775807"),
    (
        "rl-train --env maze --local --num-actors 1000000000",
        "would take",
    ),
    (
        "rl-train --env boxworld --curriculum grid_size=6 --curriculum-score 5 --total-steps 1",
        "curriculum_score (with curriculum_measure 'solved') is 5",
    ),
    ("rl-probe recall --seed 100000000000000000000000000", "seed is 100000000000000000000000000; allowed: 0..184467"),
    ("rl-eval x --seed 100000000000000000000000000", "seed is 100000000000000000000000000; allowed: 0..184467"),
    ("rl-eval x --episodes 100000000000000000000000000", "episodes is 100000000000000000000000000; allowed: 1..90071"),
    ("rl-eval x --gif {folder}", "which is a directory; expected: a file"),
    ("rl-eval x --json {folder}", "which is a directory; expected: a file"),
    ("rl-eval {probe}", "is a run of rl-probe; expected: a run of rl-train"),
    ("rl-doctor {probe}", "is a run of rl-probe; expected: a run of rl-train"),
    ("rl-train --resume {probe}", "is a run of rl-probe; expected: a run of rl-train"),
    ("rl-train --preset=", "--preset needs a value"),
    ("rl-train --preset esy", "unknown preset 'esy'; allowed: paper, easy"),
    ("rl-train --config=", "--config needs a value"),
    ("rl-train --config {toml}", "expected TOML, as a run's config.toml: Expected '='"),
    ("rl-train --config {settings}", "agent is 3; expected a table of settings"),
    ("rl-train --population 2 --pbt.explore learner.lr=normal(1,2)", "allowed: loguniform, uniform, choice"),
    ("rl-train --local --env Acrobot-v9", "unknown environment 'Acrobot-v9'; did you mean: Acrobot-v1"),
    ("rl-train --learning_rate 0.1", "unknown flag '--learning-rate'; did you mean: --lr?"),
    ("rl-train", "--env is missing; allowed: boxworld, mini-pacman, "),
    ("rl-train --preset easy --restarts 1", "--env is missing; allowed: boxworld, mini-pacman, "),
    ("rl-bench --seconds 2x", "--seconds: '2x' is not a duration; allowed: 90s, 10m"),
    ("rl-bench --seconds 0.5s", "--seconds is 0.5s; allowed: at least 1s"),
    ("rl-train --batch-size 64", "'--batch-size'; here --envs-per-update counts the environments of an update"),
    ("rl-train --n-epochs 3", "unknown flag '--n-epochs'; it is a setting of ppo: --algorithm-args epochs=N"),
    ("rl-train --update_epochs 3", "unknown flag '--update-epochs'; it is a setting of ppo: --algorithm-args epochs=N"),
    ("rl-train --num-minibatches 3", "it is a setting of ppo: --algorithm-args minibatches=N"),
    ("rl-train --clip-range 3", "it is a setting of ppo: --algorithm-args clip=X"),
    ("rl-train --clip-coef=3", "it is a setting of ppo: --algorithm-args clip=X"),
    ("rl-train --target-kl 3", "it is a setting of ppo, not of vtrace: --algorithm-args target_kl=VALUE"),
    ("rl-train --hidden-size 3", "the size of a core is one of its options: --core-args NAME=N"),
    ("rl-train --core lstm --hidden-size 3", "it is an option of lstm: --core-args hidden_size=VALUE"),
    ("rl-train --rnn-size 3", "the size of a core is one of its options: --core-args NAME=N"),
    ("rl-train --rollout 3", "unknown flag '--rollout'; did you mean: --unroll-length?"),
    ("rl-train --capture-video", "--video-every N records episodes while training"),
    ("rl-train --save-freq 3", "checkpoints are written at time intervals: --checkpoint-every 60s"),
    ("rl-train --exp-name x", "unknown flag '--exp-name'; did you mean: --run-dir?"),
    ("rl-train --gae-lambda 1", "it is a setting of a2c and ppo, not of vtrace: --algorithm-args gae_lambda=VALUE"),
    ("rl-train --env CartPole-v1 --gae-lambda 1", "it is a setting of ppo: --algorithm-args gae_lambda=VALUE"),
    ("rl-train --algorithm a2c --gae-lambda 1", "it is a setting of a2c: --algorithm-args gae_lambda=VALUE"),
    ("rl-train --env t-maze --limbo-time 1", "it is a parameter of t-maze: --env-args limbo_time=VALUE"),
    (
        "rl-train --env CartPole-v1 --envs-per-update 32",
        "envs_per_update is 32; allowed with --sync, A2C and PPO, which learn from one unroll of every actor: "
        "num_actors * envs_per_actor, here 16",
    ),
    ("rl-train --gamma=0.9", "unknown flag '--gamma'; did you mean: --discount?"),
    ("rl-train --local --env nope", "unknown environment 'nope'; available: boxworld"),
    (
        "rl-train --local --env my/environments.py",
        "names a file; expected: a module and a class, my.environments:CLASS",
    ),
    ("rl-eval --epsiodes", "unknown flag '--epsiodes'; did you mean: --episodes"),
    ("rl-population --replai x", "unknown flag '--replai'; did you mean: --replay"),
    ("rl-doctor --jsn", "unknown flag '--jsn'; did you mean: --json"),
    ("rl-bench --secnds 3", "unknown flag '--secnds'; did you mean: --seconds"),
]


@pytest.mark.parametrize(("line", "said"), MISTAKES)
def test_a_mistake_is_one_line(line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.txt").write_text("root:x:0:0")
    (tmp_path / "config.toml").write_text("agent = 3")
    (tmp_path / "empty.toml").write_text("# nothing")
    (tmp_path / "good.toml").write_text('env = "t-maze"')
    (tmp_path / "unlike.toml").write_text("zzzzzz = 1")
    RunDirectory.create(tmp_path / "probe", {"task": "recall", "core": "lstm"}, name="x").close()
    places = {name: f"{tmp_path}/{name}.toml" for name in ("empty", "good", "unlike")}
    places |= {"toml": f"{tmp_path}/config.txt", "settings": f"{tmp_path}/config.toml"}
    places |= {"probe": f"{tmp_path}/probe", "folder": str(tmp_path)}
    command, *words = line.format_map(places).split()
    assert run(command, *words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1, "one line"
    assert captured.err.startswith(f"{command}: ")


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a CUDA device")
def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rl-train", "--env", "maze", "--device", "cuda", "--local", "--run-dir", str(tmp_path / "run")) == 2
    assert "--device cuda: there is no such device; allowed: cpu; torch" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


FORM = [
    ("rl-train lr=3", "lr=3"),
    ("rl-train -lr 3", "-lr"),
    ("rl-train --lr abc", "'abc' is not a number"),
    ("rl-train --lr inf", "'inf' is not a number"),
    ("rl-train --lr", "--lr"),
    ("rl-train --total-steps 1.5", "'1.5' is not a whole number"),
    ("rl-train --total-steps 10m", "'10m' is not a whole number; also allowed: 20k, 1.5M"),
    ("rl-train --time-limit 20k", "'20k' is not a duration; allowed: 90s, 10m, 2h, 1d"),
    ("rl-train --num-actors few", "--num-actors: no type matching INT|{auto}"),
    ("rl-train --conv-channels a", "--conv-channels [INT [INT ...]]"),
    ("rl-train --env-args grid_size", "'grid_size' is not of the form KEY=VALUE"),
    ("rl-eval", "RUN"),
    ("rl-check-core", "CORE"),
]


@pytest.mark.parametrize(("line", "said"), FORM)
def test_values_of_a_wrong_form_are_named(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command, *words = line.split()
    assert run(command, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_knows_its_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--version") == 0
    assert capsys.readouterr().out == f"{command} {engram.__version__}\n"


def test_words() -> None:
    assert dashed(["--total_steps=2_0", "a_b", "--pbt.p_value", "x_y=1"]) == [
        *("--total-steps=2_0", "a_b", "--pbt.p-value", "x_y=1")
    ]
    assert value_of("--env", ["--env", "a", "--lr", "3", "--env=b"]) == "b", "the last one holds, as for every flag"
    assert [count(text) for text in ("2e6", "1_000", "-3")] == [2_000_000, 1000, -3]
    assert {"--conv-channels", "--lr", "--core", "--pbt.interval", "--env"} <= flags_of(RunConfig)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"agent": {"torso": []}}, "agent.torso is []; expected a table of settings"),
        (
            {"agent": {"torso": {"conv_channels": ["a"]}}},
            "conv_channels[0] is 'a'; expected int",
        ),
        ({"agent": {"torso": {"conv_channels": 3}}}, "agent.torso.conv_channels is 3; expected tuple[int, ...]"),
        ({"env_args": 3}, "env_args is 3; expected dict[str, typing.Any]"),
        ({"num_actors": "few"}, "num_actors is 'few'; expected typing.Union[int, typing.Literal['auto']]"),
        ({"run_dir": 3}, "run_dir is 3; expected str | None"),
        ({"learner": {"lr": float("inf")}}, "learner.lr is inf; expected float"),
        ({"learner": {"lr": True}}, "learner.lr is True; expected float"),
        ({"total_steps": True}, "total_steps is True; expected int"),
        ({"population": 2, "pbt": {"factors": [1.0]}}, "pbt.factors is [1.0]; expected tuple[float, float]"),
        ({"pbt": {"scheme": 3}}, "pbt.scheme is 3; expected typing.Literal['lp-rnn', 'truncation']"),
        ({"total_stesp": 3}, "unknown setting 'total_stesp'; did you mean: total_steps"),
    ],
)
def test_a_saved_setting_of_another_type_is_named(setting: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"expected|did you mean") as problem:
        from_dict(RunConfig, setting)
    assert said in str(problem.value)


@pytest.mark.integration
def test_the_largest_seed_trains_and_is_evaluated(tmp_path: Path) -> None:
    seed, path = str(2**64 - 1), str(tmp_path / "run")
    assert run("rl-train", *TINY, "--local", "--seed", seed, "--total-steps", "1", "--run-dir", path) == 0
    assert run("rl-eval", path, "--seed", seed, "--episodes", "2") == 0


def test_a_saved_configuration_comes_back() -> None:
    config = RunConfig(env="t-maze", num_actors="auto", population=3, run_dir="x")
    assert from_dict(RunConfig, to_dict(config)) == config


def test_help_is_as_wide_as_the_terminal_and_keeps_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("rl-probe", "rl-play", "rl-train", "rl-reproduce", "rl-look"):
        assert run(command, "--help") == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80, command
        if command == "rl-probe":
            assert " rl-probe --list         all tasks, with chance and published results" in map(str.rstrip, lines)
