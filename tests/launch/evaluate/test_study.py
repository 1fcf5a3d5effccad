"""Interventions and decoding: nothing done changes nothing, pairs and parts are what they are called."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.actors.actor import Actor
from engram.actors.episodes import play
from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.agents.cores import core_names, make_core
from engram.agents.cores.core import named_leaves
from engram.agents.inside import mask
from engram.launch.entry import rl_eval as run
from engram.launch.evaluate.studies import Interference, Played, decode, effect, parsed, play_all, play_first, reading
from engram.launch.runs.trained import make_actor

ENVIRONMENT = {"difficulty": 0, "half_width": 4, "limbo_time": 4, "teleport_delay": 2, "timeout_frames": 20}
N = 6


def make_factory(**agent: Any) -> ActorFactory:
    config = AgentConfig(**({"core": "gru", "core_args": {"hidden_size": 16}} | agent))
    return ActorFactory(env="t-maze", env_args=ENVIRONMENT, agent=config, num_envs=N, unroll_length=1, seed=0)


FACTORY = make_factory()
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)  # the same weights in every run
    WEIGHTS = FACTORY.make_actor(0).agent.state_dict()


def fresh(num_envs: int = N, first_index: int = 0, factory: ActorFactory = FACTORY) -> Actor:
    weights = WEIGHTS if factory is FACTORY else factory.make_actor(0).agent.state_dict()
    return make_actor(
        factory, weights, seed=1, greedy=False, num_envs=num_envs, unroll_length=1, first_index=first_index
    )


# -- interventions ---------------------------------------------------------------------------------------------------


def interfered(words: str) -> np.ndarray[Any, Any]:
    return play_all(fresh, N, N, parsed(words), 0).episodes


def numbers(words: str | None, steps: int = 20) -> list[torch.Tensor]:
    """Policy, value, action and state of every environment at every step."""
    actor, found = fresh(), list[torch.Tensor]()
    change = None if words is None else Interference(actor.agent.core, parsed(words), 0)
    for t in range(steps):
        if change:
            actor.state = change(t, actor.state, np.ones(N, np.bool_))
        agent = actor.unroll().agent
        found += [agent.logits[0], agent.value[0], agent.action[0], actor.state.core.h.clone()]
    return found


def test_an_intervention_that_does_nothing_changes_no_bit() -> None:
    undisturbed, plain = play_all(fresh, N, N, None, 0).episodes, numbers(None)
    np.testing.assert_array_equal(undisturbed, play(fresh(), N)[np.argsort(play(fresh(), N)[:, 0])])
    for words in ("wipe@0", "wipe@500", "freeze@5:5", "noise@5:0", "swap@500", "wipe@500:unit=3"):
        np.testing.assert_array_equal(interfered(words), undisturbed, err_msg=words)
        assert all(map(torch.equal, numbers(words), plain)), words


def test_every_kind_changes_the_values_that_follow_and_none_before() -> None:
    def values(words: str | None) -> torch.Tensor:
        actor, found = fresh(), []
        change = None if words is None else Interference(actor.agent.core, parsed(words), 0)
        for t in range(10):
            if change:
                actor.state = change(t, actor.state, np.ones(N, np.bool_))
            found.append(actor.unroll().agent.value[0])
        return torch.stack(found)

    plain = values(None)
    for words in ("wipe@5", "swap@5", "freeze@5:7", "noise@5:1"):
        first = 6 if words.startswith("freeze") else 5
        changed = values(words)
        assert torch.equal(changed[:first], plain[:first]), words
        assert (changed[first] != plain[first]).all(), words


CORES = [name for name in core_names() if name != "feedforward"]
KINDS = ["wipe@3", "swap@3", "freeze@3:5", "noise@3:0.5"]


@pytest.mark.parametrize(
    ("core", "words"), [*(("lstm", kind) for kind in KINDS), *zip(CORES, KINDS * len(CORES), strict=False)]
)
def test_every_kind_and_every_core(core: str, words: str) -> None:
    factory = make_factory(core=core, core_args={})
    with torch.random.fork_rng(devices=[]):
        weights = factory.make_actor(0).agent.state_dict()
    actor = make_actor(factory, weights, seed=1, greedy=False, num_envs=N, unroll_length=1)
    change = Interference(actor.agent.core, parsed(words), 0)
    for t in range(6):
        actor.state = change(t, actor.state, np.ones(N, np.bool_))
        assert actor.unroll().agent.value.isfinite().all()


def test_wiped_swapped_and_frozen_states_are_what_they_are_called() -> None:
    actor = fresh()
    for _ in range(4):
        actor.unroll()
    playing = np.array([True, False, True, True, False, True])
    core, before = actor.agent.core, actor.state.core.h.clone()

    def after(words: str, step: int = 4) -> torch.Tensor:
        return Interference(core, parsed(words), 0)(step, actor.state, playing).core.h

    assert torch.equal(after("wipe@4"), torch.zeros(N, 16))
    assert torch.equal(after("swap@4")[[2, 3, 5, 0]], before[[0, 2, 3, 5]])
    part = after("wipe@4:unit=3-5")
    assert torch.equal(part[:, 2:5], torch.zeros(N, 3))
    assert torch.equal(part[:, [0, 1, *range(5, 16)]], before[:, [0, 1, *range(5, 16)]])
    freeze = Interference(core, parsed("freeze@4:6"), 0)
    held = []
    for step in range(4, 8):
        state = freeze(step, actor.state, playing)
        held.append(torch.equal(state.core.h, before))
        actor.state = state
        actor.unroll()
    assert held == [True, True, True, False]


def test_levels_and_random_numbers_are_paired() -> None:
    """Until the intervention both play the same; an episode that ended before it is the same altogether."""
    asked: list[tuple[int, int]] = []

    def make(num_envs: int, first: int) -> Actor:
        asked.append((num_envs, first))
        return fresh(num_envs, first)

    without, changed = (play_all(make, 9, 4, what, 0) for what in (None, parsed("wipe@9")))
    assert asked == 2 * [(4, 0), (4, 4), (1, 8)]
    levels = [fresh(9).batch.level(i)["goal"] for i in range(9)]
    assert [fresh(1, i).batch.level(0)["goal"] for i in range(9)] == levels
    early = ~changed.reached
    np.testing.assert_array_equal(without.episodes[early], changed.episodes[early])
    assert without.episodes[:, 0].tolist() == changed.episodes[:, 0].tolist() == list(range(9))
    assert all(map(torch.equal, numbers("wipe@9")[: 4 * 9], numbers(None)[: 4 * 9]))


def test_differences_are_of_pairs() -> None:
    def played(solved: list[int]) -> Any:
        rows = np.array([[i, 2 * s, 5, s, s] for i, s in enumerate(solved)], np.float32)
        return type(play_first(fresh()))(rows, np.array([True, True, False, True]))

    found = effect(played([1, 1, 0, 1]), played([1, 0, 0, 0]), ("solved", "finished"), 3)
    assert (found.step, found.reached) == (3, 3)
    assert (found.outcomes["solved"].without, found.outcomes["solved"].changed) == (0.75, 0.25)
    assert found.outcomes["return"].difference.mean == -1.0
    spread = np.std([0, -1, 0, -1], ddof=1) / 2 * 3.182446
    assert found.outcomes["solved"].difference.high == pytest.approx(-0.5 + spread, rel=1e-4)


def test_a_solved_rate_is_of_the_episodes_that_report_it() -> None:
    def played(solved: list[float]) -> Played:
        rows = np.array([[i, 1, 5, s] for i, s in enumerate(solved)], np.float32)
        return Played(rows, np.ones(len(solved), np.bool_))

    some = effect(played([1, np.nan, 1, 0]), played([0, 1, 1, np.nan]), ("solved",), 3).outcomes["solved"]
    assert (some.without, some.changed, some.difference.mean) == (1.0, 0.5, -0.5)
    none = effect(played([np.nan] * 4), played([np.nan] * 4), ("solved",), 3)
    assert list(none.outcomes) == ["return", "length"]


@pytest.mark.parametrize(
    ("core", "options", "words", "count"),
    [
        ("rmc", {"num_slots": 3, "num_heads": 2, "head_size": 4}, ("slot", "2"), 8),
        ("rmc", {"num_slots": 3, "num_heads": 2, "head_size": 4}, ("head", "1"), 12),
        ("concrete", {"num_pools": 5, "pool_size": 7}, ("pool", "3-5"), 21),
        ("concrete", {"num_pools": 5, "pool_size": 7}, ("pool", "1,4-5"), 21),
        ("lstm", {"hidden_size": 6}, ("unit", "6"), 2),
        ("fwm", {"hidden_size": 6, "memory_size": 3}, ("leaf", "memory"), 27),
        ("fwm", {"hidden_size": 6, "memory_size": 3}, ("leaf", "controller"), 12),
        ("gru", {"hidden_size": 6}, ("", ""), 6),
    ],
)
def test_masks_mark_the_part(core: str, options: dict[str, int], words: tuple[str, str], count: int) -> None:
    marked = named_leaves(mask(make_core(core, 4, **options), *words))
    assert sum(int(leaf.sum()) for leaf in marked.values()) == count


def test_a_slot_is_the_slot_that_is_named() -> None:
    marked = mask(make_core("rmc", 4, num_slots=3, num_heads=2, head_size=4), "slot", "2").memory[0]
    assert marked.all(1).tolist() == [False, True, False]
    several = mask(make_core("rmc", 4, num_slots=3, num_heads=2, head_size=4), "slot", "1,3").memory[0]
    assert several.all(1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("wpe@3", "did you mean: wipe"),
        ("wipe", "expected wipe@STEP"),
        ("freeze@9:3", "END of at least STEP"),
        ("noise@9", "expected noise@STEP:SIGMA"),
        ("noise@9:-1", "SIGMA of at least 0"),
    ],
)
def test_words_that_mean_nothing_are_explained(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(words)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("slot=1", "no part 'slot'"),
        ("unit=17", "allowed: 1..16"),
        ("unit=3,", "unit is '3,'"),
        ("leaf=c", "leaf is 'c'"),
    ],
)
def test_parts_that_the_core_does_not_have(part: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Interference(fresh().agent.core, parsed(f"wipe@3:{part}"), 0)


# -- decoding --------------------------------------------------------------------------------------------------------


def test_a_decoder_reads_what_is_there_and_not_what_is_not() -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(3, size=300)
    noise = rng.normal(size=(300, 600)).astype(
        np.float32
    )  # more numbers than episodes: it must not be learned by heart
    silent = reading(0, noise, classes)
    assert silent.low < silent.chance < silent.high + 0.05
    noise[:, :30] += 8 * np.eye(3, dtype=np.float32)[classes].repeat(10, axis=1)
    telling = reading(7, noise, classes)
    assert telling.accuracy > 0.95
    assert (telling.step, telling.episodes) == (7, 300)
    assert telling.chance == np.bincount(classes).max() / 300


def test_the_place_is_read_from_a_memory_and_the_goal_before_the_cue_is_gone() -> None:
    readings = {fact: decode(fresh(60), fact, 2) for fact in ("goal", "place")}
    assert [each.step for each in readings["goal"]][:3] == [0, 2, 4]
    assert readings["goal"][0].accuracy == 1.0  # the cue is shown
    assert all(each.accuracy >= each.chance - 0.2 for each in readings["place"])


def test_the_state_after_the_last_step_of_episodes_of_equal_length_is_read() -> None:
    factory = replace(FACTORY, env_args=ENVIRONMENT | {"timeout_frames": 4})
    lengths = play_first(fresh(50, factory=factory)).episodes[:, 2]
    assert set(lengths) == {4.0}
    assert [each.step for each in decode(fresh(50, factory=factory), "goal", 1)] == [0, 1, 2, 3]


def test_a_part_is_decoded_from_its_own_numbers() -> None:
    """The numbers of one unit after the first step, and those of all."""
    whole, unit = (decode(fresh(60), "goal", 50, part)[0] for part in ("", "unit=3"))
    actor = fresh(60)
    classes = actor.batch.facts()["goal"]
    actor.unroll()
    assert unit == reading(0, actor.state.core.h[:, 2:3].numpy(), classes)
    assert whole == reading(0, actor.state.core.h.numpy(), classes)
    with pytest.raises(ValueError, match="no part 'slot'"):
        decode(fresh(60), "goal", 50, "slot=1")


def test_no_state_is_nothing_to_decode_from() -> None:
    assert decode(fresh(50, factory=make_factory(core="feedforward", core_args={})), "goal", 2) == []


# -- the command -----------------------------------------------------------------------------------------------------


def evaluate(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_a_sweep_is_shown_and_written(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.json"
    words = ["--intervene", "wipe@0:unit=1-4", "--sweep", "--every", 8, "--episodes", 8]
    assert evaluate(finished_run, *words, "--json", file) == 0
    found = json.loads(file.read_text())
    assert [point["step"] for point in found["points"]] == [0, 8, 16]
    assert found["points"][0]["return"]["difference"]["mean"] == 0.0
    assert found["intervene"] == "wipe@0:unit=1-4"
    assert "undisturbed" in capsys.readouterr().out


def test_decoding_is_shown_and_written(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "decoded.json"
    assert evaluate(finished_run, "--decode", "goal", "--episodes", 50, "--every", 6, "--json", file) == 0
    points = json.loads(file.read_text())["points"]
    assert points[0]["step"] == 0
    assert set(points[0]) == {"step", "episodes", "accuracy", "low", "high", "chance"}
    assert "chance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--intervene", "wipe@3:slot=1"], "no part 'slot'"),
        (["--intervene", "swop@3"], "did you mean: swap"),
        (["--intervene", "wipe@9999"], "no episode reaches step 9999; the longest has "),
        (["--decode", "gaol"], "available facts: goal"),
        (["--decode", "goal", "--episodes", "5"], "needed: at least 40"),
        (["--decode", "goal:pool=2", "--episodes", "40"], "no part 'pool'"),
    ],
)
def test_mistakes_are_one_line(
    finished_run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(finished_run, *words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("rl-eval: --")
    assert said in line
