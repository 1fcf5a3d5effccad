"""The learner makes the updates of the reference learner: weights, moments and metrics after three batches.

In float64 both must agree to 1e-10, whatever the core, torso, algorithm and settings; compiled routes, de-duplication,
groups, threads and the batched population pass are all at work there. `test_reference_mutations.py` shows that the
comparison fails for a learner that is wrong.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engram import zoo
from engram.actors.factory import action_spec, observation_spec
from engram.agents.cores import core_names
from engram.agents.specs import BoxSpec, ChoiceSpec
from engram.agents.threads import use_threads
from engram.envs.registration import is_environment
from engram.launch.config import run_flags
from engram.launch.config.plain import from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.config.run_flags import preset
from engram.learners.config import LearnerConfig
from reference_cases import TORSOS, Case, compare, distance_in_float32, in_double, small_agent

VTRACE = LearnerConfig(lr=1e-2)
ALGORITHMS = {
    "vtrace": VTRACE,
    "a2c": replace(VTRACE, algorithm="a2c", algorithm_args={"gae_lambda": 0.9}, bptt_length=4),
    "ppo": replace(VTRACE, algorithm="ppo", algorithm_args={"epochs": 2, "minibatches": 2}, max_grad_norm=0.1),
}
FLOAT32 = 1e-5
ILL_CONDITIONED = {"agalite": 1e-3, "delta-net": 5e-5, "mlstm": 5e-5}
"""Cores that divide by small sums (agalite, mlstm) or lengths: rounding grows; in float64 they are held to the same."""


@pytest.fixture(autouse=True)
def float64(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "float32" in request.node.name:
        yield
        return
    with in_double(monkeypatch):
        yield


def case(core: str, torso: str, algorithm: str, **agent: object) -> Case:
    spec, config = TORSOS[torso]
    return Case(spec, small_agent(core, config, **agent), ALGORITHMS[algorithm])


BY_DEFAULT = ("lstm", "rmc", "fwm", "mnm-p", "concrete", "conv-lstm")
EVERY = [
    pytest.param(
        core,
        algorithm,
        marks=[pytest.mark.integration] * (core != "lstm" and (core not in BY_DEFAULT or algorithm != "vtrace")),
    )
    for k, core in enumerate(core_names())
    for algorithm in ALGORITHMS
    if core in BY_DEFAULT or algorithm in ("vtrace", ("a2c", "ppo")[k % 2])
]


@pytest.mark.parametrize(("core", "algorithm"), EVERY)
def test_every_core(core: str, algorithm: str) -> None:
    compare([case(core, "convolutions" if core == "conv-lstm" else "none", algorithm)])


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("torso", TORSOS)
def test_every_torso(torso: str, algorithm: str) -> None:
    compare([case("gru" if algorithm == "vtrace" else "lstm", torso, algorithm)])


@pytest.mark.parametrize("action", [ChoiceSpec((3,)), ChoiceSpec((2, 3)), BoxSpec(2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_action_and_input(algorithm: str, action: object) -> None:
    given = case("gru", "none", algorithm, previous_action=True, previous_reward=True, time_horizon=20)
    compare([given._replace(action=action)])


def test_a_clipped_previous_reward() -> None:
    compare([case("gru", "none", "a2c", previous_reward=True, previous_reward_clip=1.0)])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "predict"), [("vtrace", "observation"), ("a2c", "reward"), ("ppo", "observation")]
)
def test_running_units_and_predictions(algorithm: str, predict: str) -> None:
    given = case("mnm-p", "normalized", algorithm, normalize_returns=True, prediction_size=6, predict=predict)
    compare([given])


@pytest.mark.integration
@pytest.mark.parametrize("core", core_names())
def test_every_core_in_float32(core: str) -> None:
    """Weights in float32 end within FLOAT32 of their movement."""
    given = case(core, "convolutions", "vtrace")
    # Adam's first steps are as long for a gradient of rounding errors as for any other: a large epsilon.
    assert distance_in_float32(
        given._replace(learner=replace(VTRACE, lr=0.5, eps=1.0, max_grad_norm=0.0))
    ) < ILL_CONDITIONED.get(core, FLOAT32)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ("vtrace", {"critic": "privileged"}),
        ("a2c", {"predict": "map", "prediction_size": 6}),
        ("ppo", {"critic": "privileged"}),
    ],
)
def test_privileged_critics_and_maps(told: dict[str, object], algorithm: str) -> None:
    """Alone and as members of a population."""
    given = case("gru", "none", algorithm, normalize_returns=algorithm != "vtrace", **told)
    compare([given])
    exact = replace(given.learner, entropy_cost=0.0625, discount=0.9375)  # as float32 represents them
    compare([given._replace(learner=replace(exact, value_cost=cost)) for cost in (0.5, 0.25)])


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_novelty_bonuses(algorithm: str) -> None:
    """Rewards that are learned from, not those that the core reads."""
    given = case("gru", "none", algorithm, normalize_returns=algorithm == "ppo", previous_reward=True)
    learner = replace(given.learner, novelty_bonus=0.5, reward_clip=1.0, entropy_cost=0.0625, discount=0.9375)
    compare([given._replace(learner=learner)])
    compare([given._replace(learner=replace(learner, value_cost=cost)) for cost in (0.5, 0.25)])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "action"),
    [("vtrace", ChoiceSpec((3,))), ("a2c", ChoiceSpec((2, 3))), ("ppo", ChoiceSpec((3,)))],
)
def test_imitation(algorithm: str, action: object) -> None:
    """The cross entropy with a player's actions, in the minibatches of every algorithm."""
    given = case("mnm-p", "none", algorithm, prediction_size=6)
    learner = replace(given.learner, imitate="players:Player")
    compare([given._replace(action=action, learner=learner)])
    compare([given._replace(action=action, learner=replace(learner, value_cost=cost)) for cost in (0.5, 0.25)])


SETTINGS = {
    "rmsprop": {
        "optimizer": "rmsprop_tf",
        "eps": 0.1,
        "rmsprop_momentum": 0.5,
        "reduction": "sum",
        "max_grad_norm": 40.0,
    },
    "schedules": {"lr_warmup": 150, "entropy_schedule": "linear", "adam_beta1": 0.0, "reward_clip": 1.0},
    "epochs": {"algorithm_args": {"epochs": 3, "policy_clip": 0.2, "trace_lambda": 0.9}, "max_grad_norm": 0.0},
    "clips": {"algorithm_args": {"clip_rho": 0.0, "clip_pg_rho": 0.7}, "lr_schedule": "constant", "value_cost": 0.25},
    "floor": {"algorithm": "ppo", "algorithm_args": {"advantage_floor": 9.0, "minibatches": 3, "epochs": 2}},
    "raw": {"algorithm": "ppo", "algorithm_args": {"normalize_advantages": False, "minibatches": 1}},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings(settings: dict[str, object]) -> None:
    compare(
        [case("lstm", "convolutions", "vtrace", normalize_returns=True)._replace(learner=replace(VTRACE, **settings))]
    )


@pytest.mark.integration
@pytest.mark.parametrize("core", ["lstm", "gru", "rmc", "conv-lstm", "mnm-p", "concrete"])
def test_wide_batches_on_two_threads(core: str) -> None:
    """Several groups of environments and pieces of matrix gradients."""
    use_threads(2)
    try:
        torso = "convolutions" if core in ("conv-lstm", "gru") else "none"
        compare([case(core, torso, "vtrace")._replace(num_envs=40, steps=4)])
    finally:
        use_threads(1)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("core", "torso", "algorithm"),
    [
        ("lstm", "convolutions", "ppo"),
        ("fwm", "none", "vtrace"),
        ("fwm", "none", "a2c"),
        ("mnm-p", "normalized", "a2c"),
    ],
)
def test_members_of_a_population_in_one_batched_call(core: str, torso: str, algorithm: str) -> None:
    given = case(core, torso, algorithm, normalize_returns=True, prediction_size=5)
    # Settings that float32 represents exactly.
    members = [
        replace(given.learner, value_cost=0.5, discount=0.9375, lr=1e-2, max_grad_norm=0.5, auxiliary_cost=1.0),
        replace(given.learner, value_cost=0.25, discount=0.875, lr=2e-2, max_grad_norm=0.0, auxiliary_cost=0.5),
    ]
    members = [replace(each, entropy_cost=0.0625) for each in members]
    compare([given._replace(learner=each) for each in members])


def presets() -> dict[str, RunConfig]:
    """Every configuration of the zoo and of the presets, once."""
    found = {
        f"zoo:{name}": from_dict(RunConfig, tomllib.loads((zoo.load(name).folder / "config.toml").read_text()))
        for name in zoo.names()
    }
    for name, (environments, cores) in run_flags.PRESETS.items():
        for env, core in [*((env, "gru") for env in environments), *cores]:
            found[f"{name}:{env}-{core}"] = preset(name, env, core)
    found["others"] = preset("paper", "CartPole-v1", "gru")
    unique: dict[str, str] = {}
    for name, config in found.items():
        unique.setdefault(repr((config.agent, config.learner)), name)
    return {name: found[name] for name in unique.values()}


PRESETS = presets()


@pytest.mark.integration
@pytest.mark.parametrize("name", PRESETS)
def test_presets_and_the_zoo(name: str) -> None:
    """Each at a reduced size: four steps, a small core, PPO with at most two epochs of two minibatches."""
    run = PRESETS[name]
    batch = run.factory().make_batch(num_envs=1)
    spec, action = observation_spec(batch.single_observation_space), action_spec(batch.single_action_space)
    batch.close()
    torso = replace(run.agent.torso, image_layout="channels-last" if is_environment(run.env) else "auto")
    sizes = small_agent(run.agent.core, torso).core_args
    agent = replace(
        run.agent, torso=torso, core_args=run.agent.core_args | sizes, prediction_size=run.agent.prediction_size and 8
    )
    learner = run.learner
    if learner.algorithm == "ppo":
        few = {"epochs": min(learner.method.settings.epochs, 2), "minibatches": 2}
        learner = replace(learner, algorithm_args=learner.algorithm_args | few)
    compare([Case(spec, agent, learner, action, steps=4, num_envs=12)])
