"""The graph POMDP: learn an unknown transit map while traveling on it, within 30 steps."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ...base.messages import check_choice, check_flag, check_integer
from ..arrays import Array
from ..drawing import Canvas, Color
from ..engine import BatchedEnv
from ..loops import batch_loops
from ..single import single
from . import rules
from .rules import ACTION_NONE, Params, State
from .sets import adjacency, graph_sets

PAPER, INK, LINE, NODE = (250, 250, 247), (40, 44, 52), (150, 156, 166), (222, 225, 230)
AGENT, GOAL = (88, 190, 110), (250, 205, 70)
_SIDE, _RADIUS, _NODE = 14.0, 5.3, 1.9  # Cells of the square, of the circle's radius and of a node's diameter


class PomdpGraphBatch(BatchedEnv):
    """N agents, each on its own directed graph.

    Description:
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
        num_envs: number of environments.
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
        batch: `first_index` and `render_mode`, see BatchedEnv.

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
        assignment = "random" if assignment == "drawn" else assignment  # its name in runs before 0.2
        check_choice("assignment", assignment, ("random", "fixed"))
        check_integer("num_graphs", num_graphs, 1, 100_000)
        check_integer("graph_seed", graph_seed, 0, 2**32 - 1)
        check_integer("num_states", num_states, 3, 16)
        check_integer("num_actions", num_actions, 2, 8)
        check_integer("num_steps", num_steps, 1, 100_000)
        check_integer("patience", patience, 1, None)
        self.action_names = tuple(str(action) for action in range(num_actions))  # pyright: ignore
        states = tuple(state_name(s) for s in range(num_states))
        self.edges = {f"from_{state_name(s)}_by_{a}": (s, a) for s in range(num_states) for a in range(num_actions)}
        """State and action of each edge, by the name of the fact for the state to which it leads."""
        self.fact_values = {"goal": states, "agent": states, "successes": ()} | dict.fromkeys(
            self.edges, (*states, "nowhere")
        )
        size = rules.observation_size(num_states, num_actions, show_graph)
        low, high = np.zeros(size, np.float32), np.ones(size, np.float32)
        earned = 2 * num_states + num_actions + 3
        if variant == "paper":
            low[earned], high[earned] = rules.INVALID_REWARD * num_steps, rules.SUCCESS_REWARD * num_steps
        super().__init__(
            num_envs,
            observation_space=spaces.Box(low, high),
            state=rules.new_state(num_envs, num_states, num_actions, num_steps),
            params=rules.Params(
                graphs=graph_sets(graph_seed, num_graphs, num_states, num_actions)[split],
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
        graph = adjacency(self.state.successors[index]).tolist()
        return {"adjacency": graph, "goal": goal, "agent": agent, "redraws": [tuple(pair) for pair in redraws]}

    def place_level(self, index: int, level: Mapping[str, Any]) -> None:
        successors = self._successors(level["adjacency"])
        redraws = level.get("redraws", ())
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in redraws):
            raise ValueError(f"level['redraws'] is {redraws!r}; expected a list of (goal, agent)")
        resets = [(level["goal"], level["agent"]), *redraws][: self.params.num_steps + 1]
        placements = np.array([self._check_placement(pair) for pair in resets], np.int8)
        self.state.graph[index] = -1
        self.state.successors[index] = successors
        self.state.places[index, : len(placements)] = placements
        rules.draw_places(self.state, index, len(placements))
        rules.begin(self.state, index)

    def facts(self) -> dict[str, Array]:
        """Goal, agent, number of successes, and every edge: the successor of a state under an action."""
        state, nowhere = self.state, len(self.fact_values["goal"])
        ends = np.where(state.successors < 0, nowhere, state.successors).astype(np.int64)
        moment = {"goal": state.goal.copy(), "agent": state.agent.copy(), "successes": state.successes.copy()}
        return moment | {name: ends[:, s, a].copy() for name, (s, a) in self.edges.items()}

    def paint(self, index: int, full: bool = True) -> Canvas:
        return paint_graph(self.state, self.params, index, full)

    def _successors(self, values: Any) -> Array:
        """Convert an adjacency [A][S][S] of zeros and ones to successors int8 [S, A]."""
        num_states, num_actions = self.state.successors.shape[1:]
        graph = np.asarray(values)
        expected = (num_actions, num_states, num_states)
        if graph.shape != expected or not np.isin(graph, (0, 1)).all() or (graph.sum(axis=2) > 1).any():
            raise ValueError(
                f"level['adjacency'] has shape {graph.shape} and values {np.unique(graph).tolist()}; expected "
                f"[action][from][to] of shape {expected}, 0 or 1, at most one destination per action and state"
            )
        return np.where(graph.any(axis=2), graph.argmax(axis=2), -1).T.astype(np.int8)

    def _check_placement(self, placement: Sequence[int]) -> tuple[int, int]:
        goal, agent = placement
        check_integer("level goal", goal, 0, self.state.successors.shape[1] - 1)
        check_integer("level agent", agent, 0, self.state.successors.shape[1] - 1)
        if goal == agent:
            raise ValueError(f"level goal and agent are both {goal}; the agent must start elsewhere")
        return goal, agent


PomdpGraph = single(PomdpGraphBatch)


class Point(NamedTuple):
    """Position on the canvas, in cells."""

    row: float
    col: float

    def toward(self, other: "Point", forward: float, right: float = 0.0) -> "Point":
        """Return the point `forward` cells toward `other`, and `right` cells to the right of that line."""
        length = max(np.hypot(other.row - self.row, other.col - self.col), 1e-9)
        down, along = (other.row - self.row) / length, (other.col - self.col) / length
        return Point(self.row + forward * down + right * along, self.col + forward * along - right * down)


def paint_graph(state: State, params: Params, index: int, full: bool) -> Canvas:
    """Paint environment `index`, with its edges if `full` or if the agent observes them."""
    side = int(_SIDE)
    canvas = Canvas(side, side, 26, PAPER, caption_rows=3, freehand=True)
    successors = state.successors[index]
    places = _circle(len(successors))
    agent, goal = int(state.agent[index]), int(state.goal[index])
    if full or params.show_graph:
        _draw_edges(canvas, places, successors, agent)
    for k, place in enumerate(places):
        color = AGENT if k == agent else GOAL if k == goal else NODE
        _disc(canvas, place, INK, _NODE + 0.14)
        _disc(canvas, place, color, _NODE)
        _letters(canvas, place, state_name(k), INK, 1.0)
    _draw_caption(canvas, state, params, index, full)
    return canvas


def state_name(state: int) -> str:
    """Return the name of a state: A, B, C, ..."""
    return chr(ord("A") + state)


def _circle(count: int) -> list[Point]:
    angles = 2 * np.pi * np.arange(count) / count
    middle = _SIDE / 2
    return [Point(middle + 0.3 - _RADIUS * float(np.cos(a)), middle + _RADIUS * float(np.sin(a))) for a in angles]


def _draw_edges(canvas: Canvas, places: list[Point], successors: Array, agent: int) -> None:
    """Draw arrows to the right of the center line, so that opposite edges stay apart; equal edges share an arrow."""
    actions: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for (start, action), end in np.ndenumerate(successors):
        if end >= 0:
            actions[start, int(end)].append(str(action))
    labels: list[tuple[Point, str, Color]] = []
    # draw edges from the agent's state last, above the others
    for (start, end), names in sorted(actions.items(), key=lambda edge: edge[0][0] == agent):
        color = INK if start == agent else LINE
        tail = places[start].toward(places[end], _NODE / 2 + 0.1, 0.35)
        head = places[end].toward(places[start], _NODE / 2 + 0.1, -0.35)
        neck = head.toward(tail, 0.7)
        sides = (tail.toward(head, 0, 0.06), tail.toward(head, 0, -0.06), neck.toward(tail, 0, 0.06))
        _polygon(canvas, color, *sides, neck.toward(tail, 0, -0.06))
        _polygon(canvas, color, head, neck.toward(head, 0, 0.32), neck.toward(head, 0, -0.32))
        length = float(np.hypot(head.row - tail.row, head.col - tail.col))
        labels.append((tail.toward(head, 0.27 * length), ",".join(names), color))
    for place, names, color in labels:
        _disc(canvas, place, PAPER, 0.6 + 0.2 * len(names))
        _letters(canvas, place, names, color, 0.7)


def _draw_caption(canvas: Canvas, state: State, params: Params, index: int, full: bool) -> None:
    side, last = _SIDE, int(state.last_action[index])
    for col, color, text in ((0.6, AGENT, "agent"), (4.4, GOAL, "goal")):
        canvas.disc(side, col - 0.1, color, 0.6)
        canvas.text(side, col + 0.9, text, INK, 0.6)
    canvas.text(side, 7.4, f"last action: {'none' if last == ACTION_NONE else last}", INK, 0.6)
    if full or params.show_graph:
        canvas.text(side + 1.8, 5.6, "black arrows: edges from the agent's state", INK, 0.6)
    steps = (
        f"step {state.steps[index]} of {params.num_steps}, {state.timer[index]} of {params.patience} without success"
    )
    canvas.text(side + 0.9, 0.6, steps, INK, 0.6)
    canvas.text(side + 1.8, 0.6, f"earned {state.total[index]:.2f}", INK, 0.6)


def _disc(canvas: Canvas, place: Point, color: Color, diameter: float) -> None:
    canvas.disc(place.row - 0.5, place.col - 0.5, color, diameter)


def _letters(canvas: Canvas, place: Point, words: str, color: Color, height: float) -> None:
    canvas.text(place.row - 0.5, place.col - 0.29 * height * len(words), words, color, height)


def _polygon(canvas: Canvas, color: Color, *points: Point) -> None:
    canvas.shape(0, 0, color, *points)
