"""The graph POMDP against a slow game written from its rules, its graphs against their listing, and its limits."""

import numpy as np
import pytest

from engram.envs.pomdp_graph import PomdpGraph, PomdpGraphBatch, adjacency, graph_sets, sample_graph

VARIANTS = ("paper", "released")
RING = [[[int(b == (a + 1) % 5) for b in range(5)] for a in range(5)]] * 2 + [[[0] * 5] * 5]
"""Actions 0 and 1 lead to the next of five states, action 2 nowhere."""


def listed_graph(random: np.random.RandomState) -> np.ndarray:
    """Listing 1 of the paper on a tensor [action, from, to]."""
    while True:
        graph = np.zeros((3, 5, 5))
        for start in range(5):
            end = random.choice([state for state in range(5) if state != start])
            graph[random.randint(0, 3), start, end] = 1
        for end in range(5):
            free = [(b, a) for a in range(3) for b in range(5) if graph[a, b].sum() == 0 and b != end]
            start, action = free[random.choice(np.arange(len(free)))]
            graph[action, start, end] = 1
        if (np.linalg.matrix_power((graph.sum(0) > 0).astype(float), 32) > 0).all():
            return graph


def distances(successors: np.ndarray) -> np.ndarray:
    """Fewest actions from each state to each other; all can be reached."""
    edges = np.eye(5, dtype=int) + adjacency(successors).max(0)
    return sum((np.linalg.matrix_power(edges, length) == 0).astype(int) for length in range(5))


class SlowGraph:
    """One agent on the adjacency of a level, [action][from][to]."""

    def __init__(self, level: dict, variant: str):
        self.edges, self.goal, self.agent = np.array(level["adjacency"]), level["goal"], level["agent"]
        self.redraws, self.variant = list(level["redraws"]), variant
        self.last, self.timer, self.time, self.earned = None, 0, 0, 0.0

    def step(self, action: int) -> tuple[float, bool]:
        ends = np.flatnonzero(self.edges[action, self.agent])
        self.time, self.last, reward = self.time + 1, action, 0.0
        if len(ends) and ends[0] == self.goal:
            reward = 10.0
            self.goal, self.agent = self.redraws.pop(0)
            if self.variant == "paper":
                self.timer = 0
        else:
            self.timer += 1
            if len(ends):
                self.agent = int(ends[0])
            else:
                reward = -0.05
        if self.timer > 5:
            self.goal, self.agent = self.redraws.pop(0)
            self.timer, self.last = 0, None
        self.earned += reward
        return reward, self.time == 30

    def observation(self) -> list[float]:
        last = [float(self.last == action) for action in range(3)]
        places = [float(s == self.goal) for s in range(5)] + [float(s == self.agent) for s in range(5)]
        return [*places, 0.0, *last, 1.0, self.time / 30, self.earned if self.variant == "paper" else 0.0]


def returns(env: PomdpGraphBatch, policy: np.ndarray | None, episodes: int) -> np.ndarray:
    """Returns [episodes, N] of a policy [N, goal, location], or of random actions."""
    random, copies = np.random.default_rng(0), np.arange(env.num_envs)
    total = np.zeros((episodes, env.num_envs))
    env.reset(seed=4)
    for episode in range(episodes):
        for _ in range(31):  # the last step only starts the next episode
            known = None if policy is None else policy[copies, env.state.goal, env.state.agent]
            _, reward, *_ = env.step(random.integers(3, size=env.num_envs) if known is None else known)
            total[episode] += reward
    return total


def oracle(env: PomdpGraphBatch) -> np.ndarray:
    """The first action of a shortest way, [N, goal, location], of copies that keep their graph."""
    best = np.zeros((env.num_envs, 5, 5), np.int64)
    for i, successors in enumerate(env.params.graphs[: env.num_envs]):
        far = distances(successors)
        left = np.where((successors >= 0)[..., None], far[successors], 99)  # [location, action, goal]
        best[i] = left.argmin(axis=1).T
    return best


def test_the_sets_are_those_of_the_listing():
    random = np.random.RandomState(666)
    test = [listed_graph(random) for _ in range(600)]
    train = [listed_graph(random) for _ in range(40)]
    sets = graph_sets(666, 600, 5, 3)
    np.testing.assert_array_equal(adjacency(sets["test"]), test)
    # a published train graph is rejected only if it equals a test graph; the first 40 do not
    np.testing.assert_array_equal(adjacency(sets["train"][:40]), train)


def test_sets_are_disjoint_and_read_only():
    for seed, count in ((666, 600), (1, 60)):
        sets = graph_sets(seed, count, 5, 3)
        assert {split: len(graphs) for split, graphs in sets.items()} == {"train": count, "test": count}
        assert not {graph.tobytes() for graph in sets["train"]} & {graph.tobytes() for graph in sets["test"]}
    with pytest.raises(ValueError, match="read-only"):
        sets["train"][0] = 0
    assert (graph_sets(1, 60, 5, 3)["test"] != graph_sets(2, 60, 5, 3)["test"]).any()


def test_small_graphs_must_be_enough_for_disjoint_sets():
    with pytest.raises(ValueError, match="num_graphs is 100000: too many for disjoint"):
        PomdpGraphBatch(1, num_states=3, num_actions=2, num_graphs=100_000)


@pytest.mark.integration
def test_statistics_of_the_sampler():
    random = np.random.RandomState(0)
    graphs = np.array([sample_graph(random, 5, 3) for _ in range(4000)])
    valid = graphs >= 0
    assert (valid.sum((1, 2)) == 10).all()
    assert set(np.unique(valid.sum(2))) == {1, 2, 3}
    assert not (graphs == np.arange(5)[:, None]).any()
    parallel = [any(len(set(row[row >= 0])) < (row >= 0).sum() for row in graph) for graph in graphs]
    assert np.mean(parallel) == pytest.approx(0.775, abs=0.02)
    ways = np.array([distances(graph)[~np.eye(5, dtype=bool)] for graph in graphs])
    assert ways.min() == 1
    assert ways.max() == 4
    assert ways.mean() == pytest.approx(1.75, abs=0.01)


@pytest.mark.integration
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_plays_like_the_slow_game(variant):
    env = PomdpGraphBatch(40, variant=variant)
    observation, _ = env.reset(seed=5)
    random = np.random.default_rng(6)
    for _ in range(4):
        games = [SlowGraph(env.level(i), variant) for i in range(40)]
        over = False
        while not over:
            for i, game in enumerate(games):
                np.testing.assert_allclose(observation[i], game.observation(), rtol=1e-6)
            # prefer valid actions, so that goals are reached often
            valid = env.state.successors[np.arange(40), env.state.agent] >= 0
            actions = (random.random((40, 3)) + 0.5 * valid).argmax(1)
            observation, reward, terminated, truncated, _ = env.step(actions)
            expected = [game.step(int(action)) for game, action in zip(games, actions, strict=True)]
            np.testing.assert_allclose(reward, [earned for earned, _ in expected], rtol=1e-6)
            assert terminated.tolist() == [ended for _, ended in expected]
            assert not truncated.any()
            over = terminated.all()
        observation, reward, *_ = env.step(actions)
        assert not reward.any()


@pytest.mark.parametrize(("variant", "known", "chance"), [("released", 166.2, 45.6), ("paper", 170.4, 44.4)])
def test_returns_of_the_oracle_and_of_chance(variant, known, chance):
    env = PomdpGraphBatch(600, variant=variant, assignment="fixed", split="test")
    # three standard errors over 600 graphs
    assert returns(env, oracle(env), 20).mean() == pytest.approx(known, abs=1.6)
    assert returns(env, None, 20).mean() == pytest.approx(chance, abs=0.8)


def test_places_are_drawn_uniformly_and_never_coincide():
    env = PomdpGraphBatch(3000, num_steps=3)
    env.reset(seed=7)
    places = env.state.places.astype(int)
    goal, agent = places[..., 0], places[..., 1]
    assert (goal != agent).all()
    assert (goal[:, 1:] != goal[:, :-1]).all()
    counts = np.array([[(goal[:, k] * 5 + agent[:, k] == pair).mean() for pair in range(25)] for k in range(4)])
    off = counts.reshape(4, 5, 5)[:, ~np.eye(5, dtype=bool)]
    np.testing.assert_allclose(off, 1 / 20, atol=0.02)


def test_copies_keep_their_graph_if_asked():
    env = PomdpGraphBatch(4, assignment="fixed", num_graphs=6, num_steps=2, first_index=4, split="test")
    env.reset(seed=1)
    for _ in range(7):
        np.testing.assert_array_equal(env.state.successors, graph_sets(666, 6, 5, 3)["test"][[4, 5, 0, 1]])
        env.step(np.zeros(4, np.int64))


def test_graphs_are_drawn_from_the_split_otherwise():
    graphs = graph_sets(3, 5, 5, 3)
    for split in ("train", "test"):
        env = PomdpGraphBatch(200, split=split, num_graphs=5, graph_seed=3)
        env.reset(seed=1)
        drawn = {successors.tobytes() for successors in env.state.successors}
        assert drawn == {graph.tobytes() for graph in graphs[split]}


def test_the_twin_sees_the_adjacency():
    env = PomdpGraph(show_graph=True)
    observation, _ = env.reset(seed=3)
    assert observation.shape == (92,)
    np.testing.assert_array_equal(observation[17:].reshape(3, 5, 5), env.level["adjacency"])


@pytest.mark.parametrize(("states", "actions"), [(3, 3), (9, 2), (16, 8)])
def test_other_sizes(states, actions):
    env = PomdpGraphBatch(8, num_states=states, num_actions=actions, num_graphs=4, show_graph=True)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (8, 2 * states + actions + 4 + actions * states**2)
    assert (env.params.graphs >= 0).sum((1, 2)).tolist() == [2 * states] * 4
    assert len(env.action_names) == env.single_action_space.n == actions
    np.testing.assert_array_equal(
        observation[:, 2 * states + actions + 4 :].reshape(8, actions, states, states), adjacency(env.state.successors)
    )


def test_a_forced_level_and_what_is_reported():
    env = PomdpGraph(patience=2)
    level = {"adjacency": RING, "goal": 2, "agent": 1, "redraws": [(4, 2), (0, 1)]}
    env.reset(seed=0, options={"level": level})
    seen = [env.step(action) for action in (0, 2, 1, 2, 2)]
    assert [step[1] for step in seen] == pytest.approx([10.0, -0.05, 0.0, -0.05, -0.05])
    places = [(int(step[0][:5].argmax()), int(step[0][5:10].argmax())) for step in seen]
    assert places[:4] == [(4, 2), (4, 2), (0, 1), (0, 1)]
    assert [step[0][11:14].tolist() for step in seen[:3]] == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert seen[-1][-1] == {"successes": 1, "timeouts": 2, "invalid_actions": 3}
    assert env.level["redraws"][:2] == [(4, 2), (0, 1)]
    assert len(env.level["redraws"]) == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": RING[:2]}, r"shape \(2, 5, 5\)"),
        ({"adjacency": np.full((3, 5, 5), 2)}, r"values \[2\]"),
        ({"adjacency": np.ones((3, 5, 5), int)}, "at most one destination"),
        ({"goal": 5}, r"\(goal, agent\) of the level is \(5, 1\); allowed: integers in 0\.\.4"),
        ({"agent": 0}, "goal and agent are both 0"),
        ({"redraws": [(1, 2), (3, 3)]}, "goal and agent are both 3"),
    ],
)
def test_levels_that_make_no_sense(change, message):
    env = PomdpGraph()
    with pytest.raises(ValueError, match=message):
        env.reset(options={"level": {"adjacency": RING, "goal": 0, "agent": 1} | change})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"variant": "text"}, "variant is 'text'; allowed: 'paper', 'released'"),
        ({"split": "all"}, "split is 'all'; allowed: 'train', 'test'"),
        ({"assignment": 3}, "assignment is 3; allowed: 'random', 'fixed'"),
        ({"num_graphs": 0}, "num_graphs is 0"),
        ({"graph_seed": -1}, "graph_seed is -1"),
        ({"num_states": 2}, r"num_states is 2; allowed: 3\.\.16"),
        ({"num_actions": 9}, r"num_actions is 9; allowed: 2\.\.8"),
        ({"num_steps": 2.5}, r"num_steps is 2\.5; expected an integer"),
        ({"patience": 0}, "patience is 0; allowed: at least 1"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        PomdpGraphBatch(2, **parameters)


def test_pictures_hide_the_edges_from_the_agent():
    env, twin = PomdpGraphBatch(1), PomdpGraphBatch(1, show_graph=True)
    for each in (env, twin):
        each.reset(seed=2)
    assert (env.draw(0) != env.draw(0, full=False)).any()
    np.testing.assert_array_equal(twin.draw(0), twin.draw(0, full=False))
