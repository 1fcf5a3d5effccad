"""The graph POMDP: learn an unknown transit map while traveling on it, within 30 steps.

The start of an episode samples everything. Graphs are sampled in the order of listing 1 of the FWM paper (Schlag,
Munkhdalai, Schmidhuber 2021, appendix I) with NumPy's legacy generator: seed 666 gives the published experiments' 600.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ...base.compiled import kernel
from ...base.errors import check_choice, check_flag, check_integer, check_numbers
from ..arrays import Array, zeroed
from ..drawing import Canvas
from ..engine import BatchedEnv, batch_loops
from ..randomness import integer
from ..single import single

SUCCESS_REWARD, INVALID_REWARD = 10.0, -0.05
ACTION_NONE = -1
PAPER, INK, NODE, AGENT, GOAL = (250, 250, 247), (40, 44, 52), (222, 225, 230), (88, 190, 110), (250, 205, 70)


class State(NamedTuple):
    """N agents on graphs of S states and A actions, T steps per episode."""

    random: Array  # uint64 [N]: random streams
    over: Array  # bool [N]: the episode has ended
    graph: Array  # int64 [N]: index of the graph in the set, -1 for a custom one
    successors: Array  # int8 [N, S, A]: successor under an action, -1 if the action is invalid
    places: Array  # int8 [N, T + 1, 2]: goal and agent at the start and after each new placement
    place: Array  # int64 [N]: index of the current placement
    goal: Array  # int64 [N]: state of the goal
    agent: Array  # int64 [N]: state of the agent
    last_action: Array  # int64 [N]: the previous action, or ACTION_NONE
    timer: Array  # int64 [N]: steps without success since the last placement
    steps: Array  # int64 [N]: steps taken in this episode
    total: Array  # float64 [N]: rewards of this episode
    successes: Array  # int64 [N]: number of times that the goal was reached
    timeouts: Array  # int64 [N]: number of new placements without success
    invalid_actions: Array  # int64 [N]: number of invalid actions


class Params(NamedTuple):
    graphs: Array  # int8 [G, S, A]: successors of the graphs of the set
    first_index: int  # Index of environment 0, for one graph per environment
    random_graph: bool  # Sample a new graph for every episode
    num_steps: int
    patience: int
    paper: bool  # Success resets the timer, and the sum of rewards is observed
    show_graph: bool


@kernel
def other_than(random: Array, i: int, state: int, num_states: int) -> int:
    """Sample a state uniformly from all except `state`."""
    sampled = integer(random, i, num_states - 1)
    return sampled + (sampled >= state)


@kernel
def draw_places(state: State, i: int, first: int) -> None:
    """Sample placements from index `first` on; each goal differs from the previous one, each agent from its goal."""
    random, places, num_states = state.random, state.places[i], state.successors.shape[1]
    for k in range(first, len(places)):
        goal = other_than(random, i, places[k - 1, 0], num_states) if k > 0 else integer(random, i, num_states)
        places[k, 0], places[k, 1] = goal, other_than(random, i, goal, num_states)


@kernel
def begin(state: State, i: int) -> None:
    state.last_action[i], state.timer[i], state.steps[i], state.total[i] = ACTION_NONE, 0, 0, 0.0
    state.successes[i], state.timeouts[i], state.invalid_actions[i] = 0, 0, 0
    state.place[i], state.goal[i], state.agent[i] = 0, state.places[i, 0, 0], state.places[i, 0, 1]


@kernel
def start(state: State, params: Params, i: int) -> None:
    count = len(params.graphs)
    graph = integer(state.random, i, count) if params.random_graph else (params.first_index + i) % count
    state.graph[i] = graph
    for origin in range(state.successors.shape[1]):
        for action in range(state.successors.shape[2]):
            state.successors[i, origin, action] = params.graphs[graph, origin, action]
    draw_places(state, i, 0)
    begin(state, i)


@kernel
def advance(state: State, params: Params, i: int, action: int) -> tuple[float, bool, bool]:
    agent, place, timer = state.agent[i], state.place[i], state.timer[i]
    end = state.successors[i, agent, action]
    success, invalid = end == state.goal[i], end < 0
    reward = SUCCESS_REWARD if success else INVALID_REWARD if invalid else 0.0
    agent = agent if invalid else end
    timer = timer + 1 if not success else 0 if params.paper else timer
    timeout = timer >= params.patience
    place += success or timeout
    state.steps[i] += 1
    state.total[i] += reward
    state.successes[i] += success
    state.timeouts[i] += timeout
    state.invalid_actions[i] += invalid
    state.last_action[i] = ACTION_NONE if timeout else action
    state.timer[i] = 0 if timeout else timer
    state.place[i] = place
    state.goal[i] = state.places[i, place, 0]
    state.agent[i] = state.places[i, place, 1] if success or timeout else agent
    return reward, state.steps[i] >= params.num_steps, False


@kernel
def observe(state: State, params: Params, i: int, vector: Array) -> None:
    num_states, num_actions = state.successors.shape[1], state.successors.shape[2]
    for k in range(len(vector)):
        vector[k] = 0.0
    vector[state.goal[i]] = 1.0
    vector[num_states + state.agent[i]] = 1.0
    if state.last_action[i] != ACTION_NONE:
        vector[2 * num_states + 1 + state.last_action[i]] = 1.0
    tail = 2 * num_states + 1 + num_actions
    vector[tail] = 1.0
    vector[tail + 1] = state.steps[i] / params.num_steps
    if params.paper:
        vector[tail + 2] = state.total[i]
    if params.show_graph:
        for action in range(num_actions):
            for origin in range(num_states):
                end = state.successors[i, origin, action]
                if end >= 0:
                    vector[tail + 3 + (action * num_states + origin) * num_states + end] = 1.0


def sample_graph(random: np.random.RandomState, num_states: int, num_actions: int) -> Array:
    """Sample a graph in which every state can be reached from every other, as successors int8 [S, A], -1 if invalid.

    Every state gets an outgoing, then an incoming edge, each with an unused (state, action) pair, never from a state to
    itself. So 2 * num_states pairs are valid, and two actions may share a destination. A graph is accepted if
    B^(2^num_states) has no zero for the 0/1 adjacency B of all actions; this also rejects periodic graphs.
    """
    states = range(num_states)
    while True:
        successors = np.full((num_states, num_actions), -1, np.int8)
        for start in states:
            others = [state for state in states if state != start]
            end = others[random.randint(len(others))]
            successors[start, random.randint(num_actions)] = end
        for end in states:
            pairs = ((start, action) for action in range(num_actions) for start in states if start != end)
            unused = [pair for pair in pairs if successors[pair] < 0]
            if not unused:
                break
            successors[unused[random.randint(len(unused))]] = end
        else:
            power = adjacency(successors).max(axis=0) > 0
            for _ in states:
                power = power @ power
            if power.all():
                return successors


@lru_cache(maxsize=8)
def graph_sets(seed: int, count: int, num_states: int, num_actions: int) -> dict[str, Array]:
    """Return sets "test" and "train" of `count` graphs each, int8 [count, num_states, num_actions], read-only.

    The test graphs are sampled first; a train graph that equals a test graph is resampled. Raises ValueError if there
    are too few graphs of this size for disjoint sets.
    """
    random, test, train, keys, repeats = np.random.RandomState(seed), list[Array](), list[Array](), set[bytes](), 0
    while len(train) < count:
        graph = sample_graph(random, num_states, num_actions)
        repeats = repeats + 1 if graph.tobytes() in keys else 0
        if repeats == 1000:  # in a row: hardly any graph is not yet in the test set
            size = f"{num_states} states and {num_actions} actions"
            raise ValueError(f"num_graphs is {count}: too many for disjoint train and test sets of graphs with {size}")
        if len(test) < count:
            test.append(graph)
            keys.add(graph.tobytes())
        elif repeats == 0:
            train.append(graph)
    sets = {"train": np.stack(train), "test": np.stack(test)}
    for graphs in sets.values():
        graphs.flags.writeable = False
    return sets


def adjacency(successors: Array) -> Array:
    """uint8 [..., action, from, to] of successors int8 [..., from, action]."""
    one_hot = successors[..., None] == np.arange(successors.shape[-2])
    return np.moveaxis(one_hot, -2, -3).astype(np.uint8)


class PomdpGraphBatch(BatchedEnv):
    """N agents, each on its own directed graph.

    Each of 3 actions leads from each of 5 states to another state, or is invalid there: 10 of the 15 pairs are
    valid, every state can be reached from every other, and two actions may lead to the same one. The agent observes
    its own state and the goal, but not the edges. When it reaches the goal, and after `patience` steps
    without success, goal and agent are placed again on the same graph, the agent never on the goal.

    Actions: 0, 1, 2: labels of the edges.
    Observations: float32 [17] for 5 states and 3 actions: goal and location, one-hot; 0; the previous action, one-hot,
        zeros at the start and after a timeout; 1; steps taken / num_steps; the sum of the rewards of this episode
        (`variant="released"`: 0). `show_graph=True`, the memory-free twin: also the adjacency `[action][from][to]`.
    Start: a graph from the set; goal uniform over the states, agent uniform over the other states.
    Rewards: +10 for reaching the goal, -0.05 for an invalid action. In 30 steps an agent that knows the graph earns
        166 on average ("released"; 170 in "paper"), a random one 45.6 (44.4).
    Episode end: terminated after `num_steps` steps.
    Info: `successes`, `timeouts` (new placements without success), `invalid_actions`.

    Args:
        variant: "paper" follows the text: success resets the timer, and the sum of rewards so far is observed.
            "released" follows the authors' code, which produced the published curves, and does neither.
        split: "train" or "test", disjoint sets of graphs.
        assignment: "random": every episode samples a graph from the set. "fixed": environment i always uses graph i
            mod `num_graphs`, so one episode of 600 environments covers every graph (the paper's batch and its
            evaluation).
        num_graphs: graphs in each of the two sets.
        graph_seed: seed of the sets; 666 gives the graphs of the published experiments.
        num_states, num_actions: size of the graphs, 3..16 and 2..8; 2 * num_states pairs are valid.
        num_steps: length of an episode.
        patience: steps without success after which goal and agent are placed again.
        show_graph: observe the adjacency.

    Differences from the original: none known in "released". In "paper" the previous action is kept after a success, as
        in the code; the text leaves this open.
    References: Schlag et al. 2021, "Learning associative inference using fast weight memory", 4.2 and appendix I.
    """

    action_names = ("0", "1", "2")
    symbols = ((AGENT, "you are here"), (GOAL, "the goal"), (NODE, "another state"))
    episode_fields = ("successes", "timeouts", "invalid_actions")
    level_keys = ("adjacency", "goal", "agent", "redraws")
    sampled_keys = ("redraws",)
    evaluation_args = {"split": "test"}  # noqa: RUF012 (nothing changes it)
    loops = batch_loops(start, advance, observe)
    state: State
    params: Params

    def __init__(
        self,
        num_envs: int,
        *,
        variant: str = "paper",
        split: str = "train",
        assignment: str = "random",
        num_graphs: int = 600,
        graph_seed: int = 666,
        num_states: int = 5,
        num_actions: int = 3,
        num_steps: int = 30,
        patience: int = 6,
        show_graph: bool = False,
        **batch: Any,
    ) -> None:
        check_flag("show_graph", show_graph)
        check_choice("variant", variant, ("paper", "released"))
        check_choice("split", split, ("train", "test"))
        check_choice("assignment", assignment, ("random", "fixed"))
        check_integer("num_graphs", num_graphs, 1, 100_000)
        check_integer("graph_seed", graph_seed, 0, 2**32 - 1)
        check_integer("num_states", num_states, 3, 16)
        check_integer("num_actions", num_actions, 2, 8)
        check_integer("num_steps", num_steps, 1, 100_000)
        check_integer("patience", patience, 1, None)
        self.replayable, self.fixed_levels = assignment == "random", num_graphs if assignment == "fixed" else 0
        self.action_names, pairs = tuple(map(str, range(num_actions))), (np.int8, num_states, num_actions)
        states = tuple(chr(ord("A") + state) for state in range(num_states))
        edges = (f"from_{state}_by_{action}" for state in states for action in self.action_names)
        self.fact_values = {"goal": states, "agent": states, "successes": ()}
        self.fact_values |= dict.fromkeys(edges, (*states, "nowhere"))
        earned = 2 * num_states + num_actions + 3
        low = np.zeros(earned + 1 + show_graph * num_actions * num_states**2, np.float32)
        high = np.ones_like(low)
        if variant == "paper":
            low[earned], high[earned] = INVALID_REWARD * num_steps, SUCCESS_REWARD * num_steps
        graphs = graph_sets(graph_seed, num_graphs, num_states, num_actions)[split]
        settings = num_steps, patience, variant == "paper", show_graph
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            state=zeroed(State, num_envs, successors=pairs, places=(np.int8, num_steps + 1, 2), total=np.float64),
            params=Params(graphs, batch.get("first_index", 0), self.replayable, *settings),
            **batch,
        )

    def level_set(self) -> set[bytes]:
        return {graph.tobytes() for graph in self.params.graphs}

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index` from its start: the adjacency `[action][from][to]`, 0 or 1, goal and agent,
        and the redraws (goal, agent) after successive successes and timeouts."""
        (goal, agent), *redraws = self.state.places[index].tolist()
        graph = adjacency(self.state.successors[index]).tolist()
        return {"adjacency": graph, "goal": goal, "agent": agent, "redraws": [tuple(pair) for pair in redraws]}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        state, (num_states, num_actions) = self.state, self.state.successors.shape[1:]
        graph, shape = np.asarray(level["adjacency"]), (num_actions, num_states, num_states)
        if graph.shape != shape or not np.isin(graph, (0, 1)).all() or (graph.sum(axis=2) > 1).any():
            raise ValueError(
                f"level['adjacency'] has shape {graph.shape} and values {np.unique(graph).tolist()}; expected "
                f"[action][from][to] of shape {shape}, 0 or 1, at most one destination per action and state"
            )
        places = [(level["goal"], level["agent"]), *level.get("redraws", ())][: self.params.num_steps + 1]
        for pair in places:
            goal, agent = check_numbers("(goal, agent) of the level", pair, 2, num_states)
            if goal == agent:
                raise ValueError(f"level goal and agent are both {goal}; the agent must start elsewhere")
        state.graph[index] = -1
        state.successors[index] = np.where(graph.any(axis=2), graph.argmax(axis=2), -1).T
        state.places[index, : len(places)] = places
        draw_places(state, index, len(places))
        begin(state, index)

    def fact_columns(self) -> list[Array]:
        state = self.state
        ends = np.where(state.successors < 0, len(self.fact_values["goal"]), state.successors)
        return [state.goal, state.agent, state.successes, *ends.reshape(self.num_envs, -1).T]

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Paint a table: the states, and below, if `full` or if the agent observes the edges, their successors under
        each action."""
        successors, names = self.state.successors[index], self.fact_values["goal"]
        colors = {int(self.state.goal[index]): GOAL, int(self.state.agent[index]): AGENT}
        canvas = Canvas(1 + successors.shape[1], len(successors), 60, PAPER)
        for state, name in enumerate(names):
            canvas.fill(0, state, colors.get(state, NODE))
            canvas.text(0, state + 0.3, name, INK)
        for (state, action), end in np.ndenumerate(successors):
            if end >= 0 and (full or self.params.show_graph):
                canvas.text(1 + action, state + 0.3, names[end], INK, 0.5)
        return canvas


PomdpGraph = single(PomdpGraphBatch)
