"""rl-eval: an unbiased sample of episodes, intervals that mean what they say, and one clear line for every mistake."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from engram.actors.episodes import play
from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.launch.entry import rl_eval as run
from engram.launch.evaluate.command import member_rows, table
from engram.launch.evaluate.episodes import Group, Summary, encoded, film, mean_interval, rate_interval, summarize
from engram.launch.metrics import accumulator
from engram.launch.runs.saved import Trainee
from engram.launch.runs.trained import evaluation_envs, make_actor
from engram.launch.train import command as train
from engram.learners import checkpoints

FIELDS = ("solved", "path_length", "num_distractors")
LEVELS = {"path_lengths": [1, 2], "num_distractors": [0, 1], "max_steps": 12}
MAX_LENGTH = LEVELS["max_steps"] + 1


def make_factory(**env_args: object) -> ActorFactory:
    agent = AgentConfig(core="lstm", core_args={"hidden_size": 8})
    return ActorFactory(env="boxworld", env_args=LEVELS | env_args, agent=agent, num_envs=7, unroll_length=5, seed=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few updates with a checkpoint after each."""
    path = tmp_path_factory.mktemp("runs") / "run"
    words = ["--env", "boxworld", "--core", "lstm", "--core-args", "hidden_size=8", "--local", "--run-dir", str(path)]
    words += ["--env-args", *(f"{key}={value}".replace(" ", "") for key, value in LEVELS.items())]
    words += ["--envs-per-actor", "64", "--envs-per-update", "64", "--unroll-length", "20", "--total-steps", "5000"]
    with pytest.MonkeyPatch.context() as patch:  # a mean of few episodes, for a run of seconds
        patch.setattr(accumulator, "WINDOW", 20)
        patch.setattr(accumulator, "PER_ENVIRONMENT", 0)
        assert train.main([*words, "--checkpoint-every", "0"]) == 0
    return path


def evaluate(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


# -- which episodes count --------------------------------------------------------------------------------------------


def test_every_environment_plays_its_fixed_number_of_episodes() -> None:
    episodes = play(make_factory().make_actor(0), 17)
    assert np.bincount(episodes[:, 0].astype(int), minlength=7).tolist() == [3, 3, 3, 2, 2, 2, 2]


def test_the_first_episodes_of_each_environment_count_and_not_the_first_to_end() -> None:
    factory = make_factory(path_lengths=1, num_distractors=0, grid_size=7, max_steps=500)
    torch.manual_seed(0)
    episodes = play(factory.make_actor(0), 21)
    torch.manual_seed(0)
    actor = factory.make_actor(0)
    in_order = np.concatenate([actor.unroll().episodes.numpy() for _ in range(310)])
    for index in range(7):
        own = episodes[episodes[:, 0] == index]
        np.testing.assert_array_equal(own, in_order[in_order[:, 0] == index][:3])
    naive = in_order[:21]
    assert naive[:, 2].mean() < episodes[:, 2].mean(), "the first to end must be shorter for this test to mean anything"


# -- intervals -------------------------------------------------------------------------------------------------------


def test_rate_interval_is_wilsons() -> None:
    """p~ = (k + z^2/2) / (n + z^2), half width = z / (n + z^2) sqrt(k (n - k) / n + z^2 / 4)  (Wilson 1927)."""
    k, n, z = 7, 40, 1.959964
    estimate = rate_interval(np.array([1.0] * k + [0.0] * (n - k), np.float32))
    middle, half = (k + z**2 / 2) / (n + z**2), z / (n + z**2) * math.sqrt(k * (n - k) / n + z**2 / 4)
    np.testing.assert_allclose(estimate, [k / n, middle - half, middle + half], rtol=1e-5)


def test_rate_interval_does_not_vanish_when_all_are_solved() -> None:
    mean, low, high = rate_interval(np.ones(100, np.float32))
    assert mean == 1.0
    assert high == 1.0
    assert 0.95 < low < 0.97


def test_mean_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        _, low, high = mean_interval(rng.normal(3.0, 2.0, size=5))
        hits += low <= 3.0 <= high
    assert 0.935 < hits / 2000 < 0.965


def test_levels_that_are_played_for_ever_are_all_played_and_counted_once() -> None:
    """Copy i of the graph's fixed assignment has graph i mod 150, so 150 copies are one each."""
    agent = AgentConfig(core="lstm", core_args={"hidden_size": 8})
    for assignment, expected in (("fixed", 150), ("random", 128)):
        environment = {"assignment": assignment, "num_graphs": 150}
        factory = ActorFactory(
            env="pomdp-graph", env_args=environment, agent=agent, num_envs=7, unroll_length=5, seed=3
        )
        assert evaluation_envs(factory, 1000) == expected
        assert evaluation_envs(factory, 20) == 20
    rows = [[level, 10.0 * level + k, 5.0] for level in range(4) for k in (-1, 1)]
    found = summarize(np.array(rows, np.float32), (), (), by_environment=True).estimates["return"]
    assert found == pytest.approx(mean_interval(np.array([0.0, 10.0, 20.0, 30.0])))


def test_one_episode_has_no_interval() -> None:
    mean, low, high = mean_interval(np.array([4.0]))
    assert mean == 4.0
    assert math.isnan(low)
    assert math.isnan(high)


def test_episodes_are_split_by_level_and_not_by_outcome() -> None:
    # env_index, return, length, solved, path_length, num_distractors
    rows = [[0, 11, 20, 1, 1, 0], [1, 0, 121, 0, 1, 2], [2, 12, 60, 1, 2, 0], [3, -1, 9, 0, 2, 2]]
    summary = summarize(np.array(rows, np.float32), FIELDS, FIELDS[1:])
    assert summary.all.episodes == 4
    assert set(summary.all.estimates) == {"return", "length", "solved"}
    assert summary.all.estimates["return"].mean == 5.5
    assert {name: list(groups) for name, groups in summary.split.items()} == {
        "path_length": [1, 2],
        "num_distractors": [0, 2],
    }
    assert summary.split["num_distractors"][0].estimates["solved"].mean == 1.0
    assert summary.split["num_distractors"][2].estimates["return"].mean == -0.5
    assert summary.split["path_length"][1].episodes == 2


def test_a_continuous_level_field_is_not_split_by() -> None:
    rows = np.array([[0, 1, 1, 0.25], [1, 2, 1, 0.75]], np.float32)
    assert summarize(rows, ("difficulty",), ("difficulty",)).split == {}


# -- acting ----------------------------------------------------------------------------------------------------------


def test_levels_are_not_those_of_training_with_the_same_seed() -> None:
    factory = make_factory()
    weights = factory.make_actor(0).agent.state_dict()
    fresh = make_actor(factory, weights, seed=factory.seed, greedy=False, num_envs=7, unroll_length=5)
    trained_on = factory.make_actor(0)
    levels = [actor.batch.level(i)["board"] for actor in (fresh, trained_on) for i in range(7)]
    assert len({tuple(board) for board in levels}) == 14


def test_greedy_takes_the_likeliest_action_and_remembers_it() -> None:
    factory = make_factory()
    weights = factory.make_actor(0).agent.state_dict()
    actor = make_actor(factory, weights, seed=0, greedy=True, num_envs=7, unroll_length=5)
    unroll = actor.unroll()
    assert torch.equal(unroll.agent.action, unroll.agent.logits.argmax(-1))
    assert torch.equal(actor.unroll().initial_state.previous_action, unroll.agent.action[-1])


# -- the command -----------------------------------------------------------------------------------------------------


def test_evaluates_a_run_and_repeats_itself(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for name in ("a.json", "b.json"):
        assert evaluate(trained, "--episodes", 50, "--json", tmp_path / name) == 0
        results.append(json.loads((tmp_path / name).read_text()))
    shown = capsys.readouterr().out
    assert "path length 1" in shown
    assert "distractors 1" in shown
    assert "evaluation seed 0" in shown
    first, second = ({key: value for key, value in result.items() if key != "date"} for result in results)
    assert first == second
    assert first["all"]["episodes"] == 50
    assert sum(group["episodes"] for group in first["split"]["path_length"].values()) == 50
    assert 0 < first["all"]["length"]["mean"] <= MAX_LENGTH
    newest = checkpoints.latest(trained / "checkpoints")
    assert newest is not None
    assert first["checkpoint"] == newest.name


def test_env_args_replace_those_of_training(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert evaluate(trained, "--episodes", 20, "--json", file, "--env-args", "path_lengths=3", "max_steps=5") == 0
    result = json.loads(file.read_text())
    assert list(result["split"]["path_length"]) == ["3"]
    assert result["all"]["length"]["mean"] == 6.0
    assert result["env_args"]["num_distractors"] == [0, 1]


def test_best_and_numbered_checkpoints(trained: Path, tmp_path: Path) -> None:
    newest = checkpoints.latest(trained / "checkpoints")
    assert newest is not None
    best = checkpoints.load(newest)["best"][1]
    oldest = min(checkpoints.step_of(path) for path in (trained / "checkpoints").glob("step-*"))
    for which, step in (("best", best), (oldest, oldest), (newest.name, checkpoints.step_of(newest))):
        file = tmp_path / "result.json"
        assert evaluate(trained, "--episodes", 5, "--checkpoint", which, "--json", file) == 0
        assert json.loads(file.read_text())["checkpoint"] == f"step-{step:012d}"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = trained / "checkpoints"
    newest = checkpoints.latest(folder)
    assert newest is not None
    damaged = checkpoints.path_of(folder, checkpoints.step_of(newest) + 1)
    damaged.mkdir()
    for file in newest.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[:-100])
    try:
        assert evaluate(trained, "--episodes", 5, "--json", tmp_path / "result.json") == 0
        assert json.loads((tmp_path / "result.json").read_text())["checkpoint"] == newest.name
        assert damaged.name in caplog.text
        assert evaluate(trained, "--episodes", 5, "--checkpoint", damaged.name) == 2
    finally:
        for file in damaged.iterdir():
            file.unlink()
        damaged.rmdir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere contains no run"),
        (["{run}", "--checkpoint", "bset"], "allowed: latest, best, or a step: step-"),
        (["{run}", "--checkpoint", "12345"], "no checkpoint of step 12345; available: step-"),
        (["{run}", "--episode", "5"], "did you mean: --episodes"),
        (["{run}", "--env-args", "path_length=3"], "did you mean: path_lengths"),
        (["{run}", "--env-args", "grid_size=3"], "grid_size is 3; allowed: 5..64"),
        (["{run}", "--env-args", "view=full"], "does not fit"),
        (["{run}", "--gif", "episode.mp4"], "gif is 'episode.mp4'; allowed: a name that ends in .gif"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    trained: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*(word.replace("{run}", str(trained)) for word in words)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rl-eval: ")
    assert said in lines[0]


@pytest.mark.parametrize("words", [["--episodes", "0"], ["--json", "/no/such/folder/x.json"], ["--seed", "-1"]])
def test_values_out_of_range_exit_with_code_2(
    trained: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(trained, *words) == 2
    assert words[0][2:] in capsys.readouterr().err


def test_a_run_without_checkpoints(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_bytes((trained / "config.toml").read_bytes())
    assert evaluate(tmp_path) == 2
    assert "no intact checkpoint; available: none" in capsys.readouterr().err


# -- moving pictures -------------------------------------------------------------------------------------------------


def test_brackets_are_what_they_are(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "[red]x[bold].gif"
    assert evaluate(trained, "--episodes", 2, "--gif", file, "--gif-episodes", 1) == 0
    assert f"wrote{file}" in "".join(capsys.readouterr().out.split())


def test_gif_has_a_frame_for_every_board_of_the_episodes(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "episodes.gif"
    assert evaluate(trained, "--episodes", 2, "--gif", file, "--gif-episodes", 2, "--env-args", "path_lengths=2") == 0
    image = Image.open(file)
    durations = []
    for frame in range(image.n_frames):
        image.seek(frame)
        durations.append(image.info["duration"])
    ends = [i for i, duration in enumerate(durations) if duration >= 1500]
    assert len(ends) == 2
    assert ends[1] == image.n_frames - 1
    # Still boards in a row are merged into one longer frame, so there can be fewer frames than steps.
    assert sum(durations) <= 2 * (MAX_LENGTH * 150 + 1500)
    assert image.width > 1.5 * image.height


def test_gif_shows_the_board_once_where_the_agent_sees_all_of_it(tmp_path: Path) -> None:
    agent = AgentConfig(core="feedforward")
    args = {"frame_cap": 30}
    factory = ActorFactory(env="mini-pacman-twin", env_args=args, agent=agent, num_envs=1, unroll_length=1, seed=0)
    (tmp_path / "twin.gif").write_bytes(encoded(film(factory.make_actor(0), 1)))
    actor = factory.make_actor(0)
    board = Image.fromarray(actor.batch.draw(0))
    image = Image.open(tmp_path / "twin.gif")
    assert image.width < 1.2 * image.height * board.width / board.height
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 3, "the board is drawn"


def test_gif_of_an_environment_without_pictures_is_refused(tmp_path: Path) -> None:
    agent = AgentConfig(core="feedforward")
    factory = ActorFactory(
        env="examples.masked_cartpole:MaskedCartPole", agent=agent, num_envs=1, unroll_length=1, seed=0
    )
    with pytest.raises(ValueError, match="renders no images"):
        film(factory.make_actor(0), 1)


# -- what is shown ---------------------------------------------------------------------------------------------------


def summary(solved: float, episodes: int = 200) -> Summary:
    outcomes = np.arange(episodes) < solved * episodes
    estimates = {"return": mean_interval(outcomes * 1.0), "solved": rate_interval(outcomes * 1.0)}
    return Summary(Group(episodes, estimates), {})


def test_a_table_of_members_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    trainees = [Trainee({}, 0.5), Trainee({}, None)]
    for width in (80, 1000):
        rows = member_rows({0: summary(0.4), 1: summary(0.6)}, trainees)
        Console(width=width).print(table("title", rows))
        printed = capsys.readouterr().out
        assert "…" not in printed
        assert {"0", "1"} <= {line.strip("│┃ ").split(" ")[0] for line in printed.splitlines()}
        assert ("40.0% [33.5, 46.9]" in printed) == (width == 1000) or "46.9]" in printed


def test_an_environment_that_draws_nothing_is_evaluated_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    words = ["--env", "secretive:Secretive", "--core", "feedforward", "--local"]
    assert train.main([*words, "--total-steps", "100", "--unroll-length", "10", "--run-dir", str(path)]) == 0
    assert "--gif" not in capsys.readouterr().out, "the farewell proposes what works"
    assert evaluate(path, "--episodes", 4, "--gif", tmp_path / "x.gif") == 0
    printed = capsys.readouterr().out
    assert "secretive:Secretive renders no images" in printed
    assert "return" in printed
