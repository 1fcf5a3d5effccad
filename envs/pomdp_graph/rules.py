"""The rules of the graph POMDP for one environment, and its disjoint train and test sets of random directed graphs.

All random values are sampled at the start of an episode: the graph, and the placements (goal, agent) in order. A level
contains all of them, so steps are deterministic.

Graphs are sampled in the order of listing 1 of the FWM paper (Schlag, Munkhdalai, Schmidhuber 2021, appendix I) with
NumPy's legacy generator, so seed 666 gives the 600 + 600 graphs of the published experiments.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array
from ..randomness import integer

SUCCESS_REWARD, INVALID_REWARD = 10.0, -0.05
ACTION_NONE = -1


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
    """The constructor's arguments, in the form that compiled functions use."""

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
    random, num_states = state.random, state.successors.shape[1]
    for k in range(first, state.places.shape[1]):
        if k == 0:
            goal = integer(random, i, num_states)
        else:
            goal = other_than(random, i, state.places[i, k - 1, 0], num_states)
        state.places[i, k, 0] = goal
        state.places[i, k, 1] = other_than(random, i, goal, num_states)


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
    """Sample a graph in which every state can be reached from every other.

    Every state gets an outgoing, then an incoming edge, each with an unused (state, action) pair, never from a state to
    itself. So 2 * num_states pairs are valid, and two actions may share a destination. A graph is accepted if
    B^(2^num_states) has no zero for the 0/1 adjacency B of all actions; this also rejects periodic graphs.

    The graph is successors int8 [num_states, num_actions]: the successor under the action, -1 if it is invalid.
    """
    while True:
        successors = _sample(random, num_states, num_actions)
        if successors is not None:
            power = adjacency(successors).max(axis=0) > 0
            for _ in range(num_states):
                power = power @ power
            if power.all():
                return successors


@lru_cache(maxsize=8)
def graph_sets(seed: int, count: int, num_states: int, num_actions: int) -> dict[str, Array]:
    """Return sets "test" and "train" of `count` graphs each, int8 [count, num_states, num_actions], read-only.

    The test graphs are sampled first; a train graph that equals a test graph is resampled. Raises ValueError if there
    are too few graphs of this size for disjoint sets.
    """
    random = np.random.RandomState(seed)
    test = [sample_graph(random, num_states, num_actions) for _ in range(count)]
    test_keys = {graph.tobytes() for graph in test}
    train: list[Array] = []
    for _ in range(100 * count):
        graph = sample_graph(random, num_states, num_actions)
        if graph.tobytes() not in test_keys:
            train.append(graph)
        if len(train) == count:
            break
    else:
        size = f"{num_states} states and {num_actions} actions"
        raise ValueError(f"num_graphs is {count}: too many for disjoint train and test sets of graphs with {size}")
    sets = {"train": np.stack(train), "test": np.stack(test)}
    for graphs in sets.values():
        graphs.flags.writeable = False
    return sets


def adjacency(successors: Array) -> Array:
    """uint8 [..., action, from, to] of successors int8 [..., from, action]."""
    num_states = successors.shape[-2]
    one_hot = successors[..., None] == np.arange(num_states)
    return np.moveaxis(one_hot, -2, -3).astype(np.uint8)


def _sample(random: np.random.RandomState, num_states: int, num_actions: int) -> Array | None:
    """Return one sample, connected or not; None if no pair remains for an incoming edge."""
    successors = np.full((num_states, num_actions), -1, np.int8)
    for start in range(num_states):
        others = [state for state in range(num_states) if state != start]
        end = others[random.randint(len(others))]
        successors[start, random.randint(num_actions)] = end
    for end in range(num_states):
        unused = [
            (start, action)
            for action in range(num_actions)
            for start in range(num_states)
            if successors[start, action] < 0 and start != end
        ]
        if not unused:
            return None
        successors[unused[random.randint(len(unused))]] = end
    return successors
