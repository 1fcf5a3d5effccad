"""The presets against what the papers say, where saying it takes more than copying numbers."""

from dataclasses import replace

import pytest
import torch

from engram.base.errors import EngramError
from engram.launch.config.run_flags import PRESETS, parse_run, preset, with_settings
from engram.learners.population.config import PopulationConfig


@pytest.mark.integration
@pytest.mark.parametrize(("env", "core", "episode", "parameters"), [("pomdp-graph", "fwm", 30, 10_933)])
def test_an_a2c_unroll_is_one_whole_episode(env: str, core: str, episode: int, parameters: int) -> None:
    config = preset("paper", env, core)
    assert config.learner.algorithm == "a2c"
    actor = config.factory().make_actor(0)
    assert sum(p.numel() for p in actor.agent.parameters()) == parameters
    for _ in range(2):  # the second unroll begins where an episode does, too
        unroll = actor.unroll()
        over = unroll.env.terminated | unroll.env.truncated
        assert over.nonzero()[:, 0].tolist() == [episode] * config.envs_per_actor
    assert config.columns * episode == int((~over[:-1]).sum()) == 600 * 30


def test_the_graph_preset_has_each_graph_once_per_batch() -> None:
    batch = preset("paper", "pomdp-graph", "fwm").factory().make_batch()
    batch.reset_into(batch.new_observation(), 1)
    assert sorted(batch.state.graph) == list(range(600))


@pytest.mark.parametrize("env", sorted(PRESETS["paper"].environments))
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_its_environment(env: str, name: str) -> None:
    environments = PRESETS[name].environments
    if env not in environments:
        with pytest.raises(ValueError, match=f"available for: {', '.join(sorted(environments))}"):
            preset(name, env, "lstm")
        return
    config = preset(name, env, "lstm")
    factory = config.factory()
    agent = factory.make_agent(factory.make_batch(num_envs=1))
    assert isinstance(agent.policy, torch.nn.Linear)
    for stage, _ in enumerate(config.levels.stages):
        assert factory.make_batch(num_envs=1, stage=stage).action_space == factory.make_batch(num_envs=1).action_space


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_sets_for_a_core_is_for_that_core_alone(name: str) -> None:
    for environment, core in PRESETS[name].cores:
        config, other = preset(name, environment, core), preset(name, environment, "gru")
        factory = config.factory()
        factory.make_agent(factory.make_batch(num_envs=1))
        assert config != replace(other, agent=replace(other.agent, core=core)), (environment, core)


@pytest.mark.parametrize("env", ["cued-catch", "sequence-recall"])
def test_concretes_preset_learns_from_predicted_rewards_and_the_lstms_does_not(env: str) -> None:
    concrete, lstm = (preset("curriculum", env, core) for core in ("concrete", "lstm"))
    assert (concrete.agent.torso.fixed_features, concrete.agent.predict, concrete.learner.lr) == (True, "reward", 8e-4)
    assert (lstm.agent.torso.fixed_features, lstm.agent.prediction_size, lstm.learner.lr) == (False, 0, 4e-4)
    assert concrete.agent.torso.normalize_features, "the environment's are kept"


@pytest.mark.parametrize("core", ["lstm", "conv-lstm", "feedforward"])
def test_controls_of_the_boxworld_figure_learn_with_the_settings_of_the_rmc(core: str) -> None:
    ours, theirs = (preset("curriculum", "boxworld", each) for each in ("rmc", core))
    assert replace(theirs, agent=replace(theirs.agent, core="rmc", core_args=ours.agent.core_args)) == ours


def test_words_change_single_settings_of_a_presets_algorithm() -> None:
    easy = ["--env", "pomdp-graph", "--preset", "easy"]
    assert parse_run(easy).learner.algorithm_args["gae_lambda"] == 0.95
    assert parse_run([*easy, "--algorithm", "a2c"]).learner.algorithm_args == {"gae_lambda": 1.0}, "its own"
    ppo = parse_run([*easy, "--algorithm-args", "clip=0.1"]).learner
    assert ppo.algorithm_args == {
        "epochs": 2,
        "minibatches": 4,
        "clip": 0.1,
        "gae_lambda": 0.95,
        "normalize_advantages": True,
        "advantage_floor": 0.1,
        "target_kl": 0.0,
    }
    assert parse_run([*easy, "--algorithm", "vtrace"]).learner.method.settings.clip_rho == 1.0
    with pytest.raises(EngramError, match="it is a setting of ppo: --algorithm-args gae_lambda=VALUE"):
        parse_run([*easy, "--gae-lambda", "0.5"])


def test_a_population_explores_only_what_its_algorithm_has() -> None:
    words = ["--population", "2", "--pbt.explore", "learner.clip=uniform(0.1,0.3)"]
    assert parse_run([*words, "--algorithm", "ppo"]).pbt.explored[0].setting == "learner.clip"
    with pytest.raises((EngramError, SystemExit)):
        parse_run(words)


def test_a_preset_with_a_population_can_be_for_a_single_learner() -> None:
    """Settings that its members would have explored are omitted; those that a user explores are not."""
    words = ["--env", "t-maze", "--core", "concrete", "--preset", "easy"]
    assert parse_run(words).population == 4
    alone = parse_run([*words, "--population", "0"])
    assert (alone.population, alone.pbt) == (0, PopulationConfig())
    assert with_settings({"env": "t-maze", "core": "concrete", "preset": "easy", "population": 0}) == alone
    with pytest.raises(EngramError, match="population is 0; allowed with settings of pbt: at least 2"):
        parse_run([*words, "--population", "0", "--pbt.interval", "7"])
