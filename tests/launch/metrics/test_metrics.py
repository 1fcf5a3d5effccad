import json
import math
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engram.actors.levels import LevelsConfig
from engram.actors.unroll import Unroll
from engram.agents.agent import Agent
from engram.agents.config import AgentConfig
from engram.agents.inside import STATE_METRICS
from engram.agents.specs import ArraySpec, ChoiceSpec
from engram.agents.values import AgentOutput, EnvOutput
from engram.launch.config.plain import from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.metrics.accumulator import Accumulator
from engram.launch.metrics.writer import MetricsWriter
from engram.learners.algorithms import algorithm_names
from engram.learners.config import LearnerConfig
from engram.learners.curriculum import Curriculum, Mixture
from engram.learners.learner import Learner

FIELDS = ("solved", "path_length", "num_distractors")


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def steps(run: Path, name: str = "metrics.jsonl") -> list[int]:
    return [row["step"] for row in rows(run, name)]


def events(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars in TensorBoard: (step, value) by tag."""
    loaded = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(x.step, x.value) for x in loaded.Scalars(tag)] for tag in loaded.Tags()["scalars"]}


def never(text: str) -> None:
    raise AssertionError(f"unexpected report: {text}")


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """Every write of this process that makes a file larger than `size` bytes fails, after a part of it was written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- MetricsWriter -----------------------------------------------------------------------------------------------------


def test_both_files_hold_the_same_numbers(tmp_path: Path) -> None:
    before = time.time()
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(10, {"loss/total": 0.1, "episode/return": 3.0})
        writer.write(20, {"loss/total": -2.5e-7})
        writer.write(30, {})
        # Nothing is buffered: a reader sees the rows while the writer is open.
        found = rows(tmp_path)
        seen = events(tmp_path)
    assert [(row["step"], row["metrics"]) for row in found] == [
        (10, {"loss/total": 0.1, "episode/return": 3.0}),
        (20, {"loss/total": -2.5e-7}),
    ]
    assert before - 1 <= found[0]["time"] <= found[1]["time"] <= time.time() + 1
    assert 0 <= found[0]["wall_s"] <= found[1]["wall_s"] < 60
    assert seen["loss/total"] == [(10, pytest.approx(0.1)), (20, pytest.approx(-2.5e-7))]
    assert seen["episode/return"] == [(10, 3.0)]
    texts = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["tensors"]
    assert not texts, "only members of a population have an ancestor"


def test_tensorboard_draws_learning_rates_by_their_logarithm_and_names_as_texts(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        for step, ancestor in ((10, 2.0), (20, 2.0), (30, 1.0)):
            writer.write(step, {"learner/lr": 1e-3, "population/learner.lr": 0.0, "population/ancestor": ancestor})
    found = events(tmp_path)
    assert found["learner/lr_log10"][0] == (10, pytest.approx(-3))
    assert "population/learner.lr_log10" not in found, "0 has no logarithm"
    assert "population/ancestor" not in found, "TensorBoard would smooth it: there is no member 1.65"
    loaded = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    texts = loaded.Tensors("population/ancestor/text_summary")
    assert [(x.step, x.tensor_proto.string_val[0]) for x in texts] == [(10, b"member 2"), (30, b"member 1")]
    assert rows(tmp_path)[0]["metrics"]["population/ancestor"] == 2.0


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    assert rows(tmp_path)[0]["metrics"] == {"a": None, "b": None, "c": 1.0}
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert math.isnan(events(tmp_path)["a"][0][1])


def test_resuming_forgets_later_rows_and_loses_nothing(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        for step in (10, 20, 30, 40):
            writer.write(step, {"x": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "ti')  # what a power failure leaves
    everything = (tmp_path / "metrics.jsonl").read_text()
    with MetricsWriter(tmp_path, 20, never) as writer:
        kept, moved = [(tmp_path / f"metrics.{name}jsonl").read_text() for name in ("", "abandoned.")]
        assert kept + moved == everything + "\n"
        writer.write(25, {"x": 2.5})
        writer.write(35, {"x": 3.5})
    assert steps(tmp_path) == [10, 20, 25, 35]
    assert events(tmp_path)["x"] == [(10, 10.0), (20, 20.0), (25, 2.5), (35, 3.5)]
    # A second resume from the same checkpoint adds to what was abandoned.
    MetricsWriter(tmp_path, 20, never).close()
    assert steps(tmp_path) == [10, 20]
    abandoned = (tmp_path / "metrics.abandoned.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in abandoned if line != '{"step": 50, "ti'] == [30, 40, 25, 35]


def test_resuming_at_the_last_row_touches_nothing(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(10, {"x": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    MetricsWriter(tmp_path, 10, never).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "metrics.abandoned.jsonl").exists()


def test_wall_time_goes_on_over_resumes(tmp_path: Path) -> None:
    row = {"step": 10, "time": 0, "wall_s": 1000.0, "metrics": {"x": 1.0}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with MetricsWriter(tmp_path, 10, never) as writer:
        writer.write(20, {"x": 1.0})
    assert 1000 <= rows(tmp_path)[1]["wall_s"] < 1060


@pytest.mark.parametrize("said", [{}, {"wall_s": None}, {"wall_s": "x"}, {"wall_s": float("inf")}])
def test_a_last_row_that_does_not_say_its_wall_time_counts_from_zero(tmp_path: Path, said: dict[str, Any]) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 10, "metrics": {"x": 1.0}} | said) + "\n")
    with MetricsWriter(tmp_path, 10, never) as writer:
        writer.write(20, {"x": 1.0})
    assert 0 <= rows(tmp_path)[1]["wall_s"] < 60


@pytest.mark.parametrize("remove", [lambda run: shutil.rmtree(run / "tensorboard"), shutil.rmtree])
def test_removed_files_come_back(tmp_path: Path, remove: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    with MetricsWriter(run, 0, never) as writer:
        writer.write(10, {"x": 1.0})
        remove(run)
        writer.write(20, {"x": 2.0})
        writer.write(30, {"x": 3.0})
    assert events(run)["x"] == [(20, 2.0), (30, 3.0)]
    assert steps(run)[-2:] == [20, 30]


def test_a_renamed_event_file_remains_valid(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(10, {"x": 1.0})
    with MetricsWriter(tmp_path, 10, never) as writer:
        writer.write(20, {"x": 2.0})
        newest = max((tmp_path / "tensorboard").iterdir())
        newest.rename(newest.with_name(newest.name + ".kept"))
        writer.write(30, {"x": 3.0})
    assert events(tmp_path)["x"] == [(10, 1.0), (20, 2.0), (30, 3.0)]


def test_a_row_without_its_end_is_no_row(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(10, {"x": 1.0})
        writer.write(20, {"x": 2.0})
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-1])  # the newline never reached the disk
    with MetricsWriter(tmp_path, 20, never) as writer:
        writer.write(30, {"x": 3.0})
    assert (steps(tmp_path), steps(tmp_path, "metrics.abandoned.jsonl")) == ([10, 30], [20])


def test_a_full_disk_costs_rows_and_one_warning(tmp_path: Path) -> None:
    reports: list[str] = []
    with MetricsWriter(tmp_path, 0, reports.append) as writer:
        writer.write(10, {"x": 1.0})
        sizes = {f: f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()}
        with disk_full_at(max(sizes.values()) + 10):
            for step in range(20, 40):
                writer.write(step, {"x": 2.0, "y" * 300: 2.0})
        assert {f: f.stat().st_size for f in sizes} == sizes  # no half rows
        writer.write(50, {"x": 3.0})
    assert len(reports) == 1
    assert "cannot write metrics" in reports[0]
    assert steps(tmp_path) == [10, 50]
    assert events(tmp_path)["x"] == [(10, 1.0), (50, 3.0)]


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    reports: list[str] = []
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with MetricsWriter(tmp_path / "run", 0, reports.append) as writer:
        with disk_full_at(1):
            writer.write(10, {"x": 1.0})
        writer.write(20, {"x": 2.0})
    assert len(reports) == 1
    assert steps(tmp_path / "run") == [20]
    assert events(tmp_path / "run")["x"] == [(20, 2.0)]


def test_rows_that_cannot_be_moved_stay(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(10, {"x": 1.0})
        writer.write(20, {"x": 2.0})
    reports: list[str] = []
    with disk_full_at(1):
        MetricsWriter(tmp_path, 10, reports.append).close()
    assert len(reports) == 1
    assert "metrics.jsonl" in reports[0]
    assert steps(tmp_path) == [10, 20]


def test_the_configuration_is_in_tensorboard(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0, never) as writer:
        config = {"agent": {"core": "rmc"}, "learner": {"lr": 0.25}, "levels": {"curriculum_score": (0.5,)}}
        writer.hparams(from_dict(RunConfig, config))
    loaded = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert loaded.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    table = loaded.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    for line in (
        "| env | boxworld |",
        "| agent.core | rmc |",
        "| levels.curriculum_score | (0.5,) |",
        "| learner.lr | 0.25 |",
    ):
        assert line in table


# -- Accumulator -------------------------------------------------------------------------------------------------------


def episodes(*values: tuple[float, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32).reshape(len(values), 3 + len(FIELDS))


def test_means_last_values_and_episodes() -> None:
    collected = Accumulator(1, FIELDS)
    collected.add_update({"loss/total": 1.0, "learner/lr": 0.5, "learner/skipped": 0.0})
    collected.add_update({"loss/total": 4.0, "learner/lr": 0.25, "learner/skipped": 1.0})
    collected.add_episodes(episodes((7, 1.0, 10, 1, 3, 0), (8, 0.0, 20, 0, 3, 2)))
    collected.add_episodes(episodes())
    collected.add_episodes(episodes((9, 5.0, 60, 1, 3, 1)))
    found = collected.take(100)
    expected = {
        "loss/total": 2.5,
        "learner/lr": 0.25,
        "learner/skipped": 1.0,
        "episode/return": 2.0,
        "episode/length": 30.0,
        "episode/solved": pytest.approx(2 / 3),
        "episode/path_length": 3.0,
        "episode/num_distractors": 1.0,
    }
    assert {name: found[name] for name in expected} == expected
    collected.add_update({"loss/total": 7.0})
    again = collected.take(100)
    assert again["loss/total"] == 7.0
    assert not [name for name in again if name.startswith("episode/")]


def test_one_skipped_update_does_not_hide_the_others() -> None:
    collected = Accumulator(1)
    for value in (math.nan, 1.0, math.inf, 3.0):
        collected.add_update({"a": value, "b": math.nan, "learner/lr": 1.0})
    found = collected.take(1)
    assert found["a"] == 2.0
    assert math.isnan(found["b"])


def slept(seconds: float) -> float:
    """Sleep, and say how long it really was."""
    started = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - started


def test_where_the_time_goes() -> None:
    started = time.perf_counter()
    collected = Accumulator(2)
    waited = learned = 0.0
    for _ in range(2):
        waited += slept(0.03)
        learned += slept(0.01)
    collected.add_seconds("queue_wait", waited)
    collected.add_seconds("learner_busy", learned)
    collected.add_update({"a": 1.0})
    collected.add_unroll(0.05)
    collected.add_unroll(0.03)
    collected.note_actors(2, 0, 12_500_000)
    found = collected.take(1000)
    wall = time.perf_counter() - started
    assert found["perf/queue_wait"] == pytest.approx(waited / wall, rel=0.1)
    assert found["perf/learner_busy"] == pytest.approx(learned / wall, rel=0.1)
    assert found["perf/queue_wait"] + found["perf/learner_busy"] <= 1
    assert found["perf/actor_busy"] == pytest.approx(0.08 / (2 * wall), rel=0.1)
    assert found["perf/env_steps_per_second"] == pytest.approx(1000 / wall, rel=0.1)
    assert found["perf/object_store_mb"] == 12.5


def test_nothing_happened_is_no_row_and_no_new_beginning() -> None:
    collected = Accumulator(1, FIELDS)
    collected.add_episodes(episodes((0, 2.0, 4, 1, 1, 0)))
    assert collected.take(0) == {}
    collected.add_update({"a": 1.0})
    assert collected.take(5)["episode/return"] == 2.0
    assert collected.take(5) == {}


def some(count: int, env: int = 0, reward: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """So many episodes of one environment."""
    return episodes(*[(env, reward, 1, 1, 0, 0)] * count)


def test_the_window_is_the_last_thousand_episodes() -> None:
    collected = Accumulator(1, FIELDS)
    assert collected.window() == {}
    collected.add_episodes(np.concatenate([some(500, reward=100.0), some(499)]))
    assert collected.settled() is None
    assert collected.window()["return"] == pytest.approx((500 * 100 + 499) / 999)
    collected.add_update({"a": 1.0})
    collected.take(1)  # the window goes on over rows
    collected.add_episodes(some(501, reward=3.0))
    assert collected.settled() == (pytest.approx((499 + 3 * 501) / 1000), 1000, pytest.approx(1 / 1000**0.5, rel=1e-2))
    collected.add_episodes(episodes(*[(0, float(i), 1, 0, 0, 0) for i in range(2000)]))
    assert collected.window()["return"] == pytest.approx(np.mean(range(1000, 2000)))


def test_the_window_holds_four_episodes_of_each_environment_if_that_is_more() -> None:
    collected = Accumulator(2, FIELDS, 200)
    for env in range(400):
        collected.add_episodes(some(3, env))
    assert collected.settled() is None
    for env in range(400):
        collected.add_episodes(some(1, env))
    found = collected.settled()
    assert found is not None
    assert found.episodes == 1600


def test_a_mean_counts_only_when_every_environment_has_ended_an_episode() -> None:
    """Environments that fail soon end many episodes before one that takes its time ends any."""
    collected = Accumulator(1, FIELDS, 2)
    collected.add_episodes(some(5000, env=0))
    assert collected.settled() is None
    collected.add_episodes(some(1, env=1))
    assert collected.settled() is not None


def test_after_a_new_beginning_episodes_of_before_do_not_count() -> None:
    collected = Accumulator(1, FIELDS, 2)
    collected.add_episodes(np.concatenate([some(1500, env=0, reward=9.0), some(1, env=1)]))
    assert collected.settled() is not None
    collected.begin_episodes()
    assert collected.settled() is None
    assert collected.window()["return"] > 8, "what is shown goes on"
    collected.add_episodes(np.concatenate([some(500, env=0), some(499, env=1)]))
    assert collected.settled() is None, "999 are less than a window"
    collected.add_episodes(some(1, env=1))
    found = collected.settled()
    assert found is not None
    assert found.mean == 1.0
    again = Accumulator(1, FIELDS, 2)
    again.load_state_dict(json.loads(json.dumps(collected.state_dict())))
    assert again.settled() == found
    collected.begin_anew()
    assert collected.window() == {}, "other weights: what was earned before says nothing of them"


def test_what_is_not_known_of_an_episode_is_left_out_of_the_means() -> None:
    collected = Accumulator(1, FIELDS)
    collected.add_update({})
    collected.add_episodes(episodes((7, 1.0, 10, 1, math.nan, math.nan), (8, math.nan, 20, math.nan, 3, math.nan)))
    for found in (collected.take(100), {f"episode/{name}": x for name, x in collected.window().items()}):
        told = {name: x for name, x in found.items() if name.startswith("episode/")}
        returned = told.pop("episode/return")
        assert math.isnan(returned), "a return that is no number is to be seen"
        assert told == {"episode/length": 15.0, "episode/solved": 1.0, "episode/path_length": 3.0}


def test_fields_that_came_went_or_moved_since_the_checkpoint_keep_their_own_numbers() -> None:
    before, after = Accumulator(1, ("caught", "solved")), Accumulator(1, ("solved", "score"))
    before.add_update({})
    before.add_episodes(np.array([[7, 1.0, 10, 5.0, 1.0]], np.float32))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    expected = {"return": 1.0, "length": 10.0, "solved": 1.0}
    assert after.window() == expected
    assert {name[8:]: x for name, x in after.take(1).items() if name.startswith("episode/")} == expected


def collect(stops: set[int]) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Rows, without timings, and the last window of a made-up run; its process is killed and resumed after `stops`."""
    draw = np.random.default_rng(0)
    collected, taken = Accumulator(2, FIELDS), []
    for i in range(20):
        value = float(draw.normal())
        collected.add_update({"loss/total": value, "learner/lr": -value})
        collected.add_unroll(0.5)
        collected.add_episodes(episodes(*[tuple(row) for row in draw.normal(size=(draw.integers(0, 9), 6))]))
        if i in stops:
            state = json.loads(json.dumps(collected.state_dict()))
            collected.add_update({"loss/total": 1e9})  # lost with the process
            collected = Accumulator(2, FIELDS)
            collected.load_state_dict(state)
        if i % 8 == 7:
            row = collected.take(40 * i)
            taken.append({name: x for name, x in row.items() if name not in TIMED})
            assert row.keys() >= TIMED
    return taken, collected.window()


def test_stop_and_resume_gives_the_numbers_of_the_uninterrupted() -> None:
    assert collect({5, 7, 19}) == collect(set())


TIMED = {"perf/env_steps_per_second", "perf/learner_busy", "perf/queue_wait", "perf/actor_busy"}


def test_the_clock_stands_still_between_stop_and_resume() -> None:
    first, second = Accumulator(1), Accumulator(1)
    first.add_update({"a": 1.0})
    first.add_seconds("learner_busy", slept(0.02))
    state = first.state_dict()
    time.sleep(0.3)
    second.load_state_dict(state)
    found = second.take(100)
    assert 0.5 < found["perf/learner_busy"] <= 1
    assert found["perf/env_steps_per_second"] > 100 / 0.2


def test_an_update_costs_microseconds() -> None:
    collected = Accumulator(1, FIELDS)
    metrics = {f"loss/{i}": float(i) for i in range(15)}
    none = episodes()
    best = math.inf
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(100):
            collected.add_seconds("learner_busy", 0.0)
            collected.add_update(metrics)
            collected.add_episodes(none)
        best = min(best, (time.perf_counter() - started) / 100)
    assert best < 100e-6


# -- The glossary ------------------------------------------------------------------------------------------------------


def random_unroll(agent: Agent, rows: int = 4, batch: int = 3) -> Unroll:
    draw = torch.Generator().manual_seed(0)
    over = torch.zeros(rows + 1, batch, dtype=torch.bool)
    return Unroll(
        initial_state=agent.initial_state(batch),
        env=EnvOutput(torch.randn(rows + 1, batch, 5, generator=draw), torch.randn(rows + 1, batch), over, over),
        agent=AgentOutput(
            torch.zeros(rows, batch, dtype=torch.int64), torch.randn(rows, batch, 4), torch.zeros(rows, batch)
        ),
        weights_version=torch.zeros(batch, dtype=torch.int64),
        member=0,
        actor=0,
        episodes=torch.zeros(0, 3),
        seconds=0.0,
    )


def test_the_glossary_lists_what_is_written_and_nothing_else(tmp_path: Path) -> None:
    agent = Agent(ArraySpec((5,)), ChoiceSpec((4,)), AgentConfig(core="feedforward"))
    collected = Accumulator(1, FIELDS)
    for algorithm in algorithm_names():
        options = {"target_kl": 10.0} if algorithm == "ppo" else {}
        learner = Learner(agent, LearnerConfig(algorithm=algorithm, algorithm_args=options), total_steps=100)
        collected.add_update(learner.step(random_unroll(agent)) | {"perf/policy_lag": 0.0})
    collected.note({"imitation/agreement": 1.0})  # with --imitate
    collected.note({f"eval/{name}": 1.0 for name in ("return", "length", "solved")})  # with --eval-every
    collected.note(dict.fromkeys(STATE_METRICS, 1.0))  # with --look-every
    curriculum = Curriculum(LevelsConfig(curriculum={"limbo_time": 20}), FIELDS, 1)
    curriculum.add(episodes((0, 1, 1, 1, 1, 1)), steps=0)
    collected.note(curriculum.metrics())  # with --curriculum
    mixture = Mixture(LevelsConfig(curriculum={"limbo_time": 20}, curriculum_mixture=0.5), FIELDS, 1, actor_envs=1)
    mixture.add(episodes((0, 1, 1, 1, 1, 1)), steps=0)
    collected.note({name: value for name, value in mixture.metrics().items() if name.endswith("_1")})
    collected.add_episodes(episodes((0, 1, 1, 1, 1, 1)))
    collected.add_unroll(1.0)
    collected.note_lag(0.0)
    collected.note_actors(1, 0, 0)
    with MetricsWriter(tmp_path, 0, never) as writer:
        writer.write(learner.steps, collected.take(learner.steps))
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
    tables = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    listed = [cells[0].strip().strip("`") for cells in tables]
    of_one_run = [name for name in listed if not name.startswith("population/")]
    assert sorted(of_one_run) == sorted(rows(tmp_path)[0]["metrics"])
    assert all(len(cells) == 4 and all(cell.strip() for cell in cells) for cells in tables)
