"""The graph POMDP: learn an unknown transit map while traveling on it, within 30 steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.messages import check_choice, check_flag, check_integer, check_numbers
from ..arrays import Array, zeroed
from ..drawing import Canvas
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..single import single
from . import rules

PAPER, INK, LINE, NODE = (250, 250, 247), (40, 44, 52), (150, 156, 166), (222, 225, 230)
AGENT, GOAL = (88, 190, 110), (250, 205, 70)
_SIDE, _RADIUS, _NODE = 14, 5.3, 1.9  # Cells of the image's side, of the circle's radius and of a node's diameter


class PomdpGraphBatch(BatchedEnv):
    """N agents, each on its own directed graph.

    Each of 3 actions leads from each of 5 states to another state, or is invalid there: 10 of the 15 pairs are
    valid, every state can be reached from every other, and two actions may lead to the same one. The agent observes
    its own state and the goal, but not the edges. When it reaches the goal, and after `patience` steps
    without success, goal and agent are placed again on the same graph, the agent never on the goal.

    Actions: 0, 1, 2: labels of the edges.

    Observations:
        float32 [17] for S = 5 states and A = 3 actions:

            0 .. S-1        goal, one-hot
            S .. 2S-1       location, one-hot
            2S              0
            2S+1 .. 2S+A    previous action, one-hot; zeros at the start and after a timeout
            2S+A+1          1
            2S+A+2          steps taken / num_steps
            2S+A+3          `variant="paper"`: sum of the rewards of this episode; "released": 0
            2S+A+4 ..       `show_graph=True`, the memory-free twin: the adjacency [action][from][to], row-major

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
    References: Schlag, Munkhdalai, Schmidhuber 2021, "Learning associative inference using fast weight memory",
        section 4.2 and appendix I.
    """

    action_names = ("0", "1", "2")
    symbols = ((AGENT, "you are here"), (GOAL, "the goal"), (NODE, "another state"))
    episode_fields = ("successes", "timeouts", "invalid_actions")
    level_keys = ("adjacency", "goal", "agent", "redraws")
    sampled_keys = ("redraws",)
    evaluation_args = {"split": "test"}  # noqa: RUF012 (nothing changes it)
    loops = batch_loops(rules.start, rules.advance, rules.observe)
    state: rules.State
    params: rules.Params

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
        self.action_names = tuple(map(str, range(num_actions)))
        states = tuple(chr(ord("A") + state) for state in range(num_states))
        edges = (f"from_{state}_by_{action}" for state in states for action in self.action_names)
        self.fact_values = {"goal": states, "agent": states, "successes": ()}
        self.fact_values |= dict.fromkeys(edges, (*states, "nowhere"))
        earned = 2 * num_states + num_actions + 3
        low = np.zeros(earned + 1 + show_graph * num_actions * num_states**2, np.float32)
        high = np.ones_like(low)
        if variant == "paper":
            low[earned], high[earned] = rules.INVALID_REWARD * num_steps, rules.SUCCESS_REWARD * num_steps
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            state=zeroed(
                rules.State,
                num_envs,
                successors=(np.int8, num_states, num_actions),
                places=(np.int8, num_steps + 1, 2),
                total=np.float64,
            ),
            params=rules.Params(
                graphs=rules.graph_sets(graph_seed, num_graphs, num_states, num_actions)[split],
                first_index=batch.get("first_index", 0),
                random_graph=assignment == "random",
                num_steps=num_steps,
                patience=patience,
                paper=variant == "paper",
                show_graph=show_graph,
            ),
            **batch,
        )
        self.replayable = assignment == "random"
        self.fixed_levels = num_graphs if assignment == "fixed" else 0

    def level_set(self) -> set[bytes]:
        return {graph.tobytes() for graph in self.params.graphs}

    def level(self, index: int) -> dict[str, Any]:
        """The level of environment `index` from its start: `{"adjacency", "goal", "agent", "redraws"}`. The adjacency
        is `[action][from][to]`, 0 or 1; the redraws are the (goal, agent) after successive successes and
        timeouts."""
        (goal, agent), *redraws = self.state.places[index].tolist()
        graph = rules.adjacency(self.state.successors[index]).tolist()
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
        rules.draw_places(state, index, len(places))
        rules.begin(state, index)

    def fact_columns(self) -> list[Array]:
        """Goal, agent, number of successes, and every edge: the successor of a state under an action."""
        state = self.state
        ends = np.where(state.successors < 0, len(self.fact_values["goal"]), state.successors)
        return [state.goal, state.agent, state.successes, *ends.reshape(self.num_envs, -1).T]

    def paint(self, index: int, full: bool = True) -> Canvas:
        """Paint the states on a circle. If `full`, or if the agent observes the edges, also paint these: lines with
        the action's name near their start and a dot at their end; those from the agent's state are black."""
        state, edges = self.state, full or self.params.show_graph
        agent, goal = int(state.agent[index]), int(state.goal[index])
        canvas = Canvas(_SIDE, _SIDE, 26, PAPER, freehand=True)
        angles = 2 * np.pi * np.arange(state.successors.shape[1]) / state.successors.shape[1]
        places = np.stack([_SIDE / 2 - np.cos(angles) * _RADIUS, _SIDE / 2 + np.sin(angles) * _RADIUS], 1)
        for (start, action), end in np.ndenumerate(state.successors[index]):
            if edges and end >= 0:
                way = (places[end] - places[start]) / np.linalg.norm(places[end] - places[start])
                aside = np.array([way[1], -way[0]]) * 0.25 * (action + 1)  # so that no two edges coincide
                tail, head = places[start] + way + aside, places[end] - way + aside
                color = INK if start == agent else LINE
                canvas.line(tuple(tail), tuple(head), color)
                row, col = head - 0.5
                canvas.disc(row, col, color, 0.4)
                row, col = 0.75 * tail + 0.25 * head - 0.5
                canvas.disc(row, col, PAPER)
                canvas.text(row, col + 0.3, str(action), color)
        for node, (row, col) in enumerate(places - 0.5):
            canvas.disc(row, col, AGENT if node == agent else GOAL if node == goal else NODE, _NODE)
            canvas.text(row, col + 0.2, self.fact_values["goal"][node], INK, 1.0)
        return canvas


PomdpGraph = single(PomdpGraphBatch)
