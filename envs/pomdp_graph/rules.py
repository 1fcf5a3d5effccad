"""The rules of the graph POMDP for one environment.

All random values are sampled at the start of an episode: the graph, and the placements (goal, agent) in order. A level
contains all of them, so steps are deterministic.
"""

from typing import NamedTuple

import numpy as np

from ...base.compiled import kernel
from ..arrays import Array, zeroed
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


def new_state(num_envs: int, num_states: int, num_actions: int, num_steps: int) -> State:
    return zeroed(
        State,
        num_envs,
        successors=(np.int8, num_states, num_actions),
        places=(np.int8, num_steps + 1, 2),
        total=np.float64,
    )


def observation_size(num_states: int, num_actions: int, show_graph: bool) -> int:
    """Width of the observation vector: 17 for 5 states and 3 actions, 92 with the graph."""
    return 2 * num_states + num_actions + 4 + show_graph * num_actions * num_states**2


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
    """Clear the counters of environment i, and start at its first placement."""
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
    """Write the observation of environment i, float32 [D]; the layout is in env.py."""
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
