"""The image of a graph: its states on a circle, the agent green, the goal yellow, edges named by their actions."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..drawing import Canvas, Color
from .rules import ACTION_NONE, Params, State

PAPER, INK, LINE, NODE = (250, 250, 247), (40, 44, 52), (150, 156, 166), (222, 225, 230)
AGENT, GOAL = (88, 190, 110), (250, 205, 70)
_SIDE, _RADIUS, _NODE = 14.0, 5.3, 1.9  # Cells of the square, of the circle's radius and of a node's diameter


class Point(NamedTuple):
    """A place on the canvas, in cells."""

    row: float
    col: float

    def towards(self, other: "Point", forward: float, right: float = 0.0) -> "Point":
        """The point `forward` cells on the way to `other`, and `right` cells to the right of that way."""
        length = max(np.hypot(other.row - self.row, other.col - self.col), 1e-9)
        down, along = (other.row - self.row) / length, (other.col - self.col) / length
        return Point(self.row + forward * down + right * along, self.col + forward * along - right * down)


def paint_graph(state: State, params: Params, index: int, full: bool) -> Canvas:
    """Environment `index`; the edges are drawn if `full`, or if the agent sees them too."""
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
    """A, B, C, ..."""
    return chr(ord("A") + state)


def _circle(count: int) -> list[Point]:
    angles = 2 * np.pi * np.arange(count) / count
    middle = _SIDE / 2
    return [Point(middle + 0.3 - _RADIUS * float(np.cos(a)), middle + _RADIUS * float(np.sin(a))) for a in angles]


def _draw_edges(canvas: Canvas, places: list[Point], successors: Array, agent: int) -> None:
    """Arrows that keep to the right, so that the two ways of a pair stay apart; one arrow for equal actions."""
    actions: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for (start, action), end in np.ndenumerate(successors):
        if end >= 0:
            actions[start, int(end)].append(str(action))
    labels: list[tuple[Point, str, Color]] = []
    # the agent's own ways out last, on top of the others
    for (start, end), names in sorted(actions.items(), key=lambda edge: edge[0][0] == agent):
        color = INK if start == agent else LINE
        tail = places[start].towards(places[end], _NODE / 2 + 0.1, 0.35)
        head = places[end].towards(places[start], _NODE / 2 + 0.1, -0.35)
        neck = head.towards(tail, 0.7)
        sides = (tail.towards(head, 0, 0.06), tail.towards(head, 0, -0.06), neck.towards(tail, 0, 0.06))
        _polygon(canvas, color, *sides, neck.towards(tail, 0, -0.06))
        _polygon(canvas, color, head, neck.towards(head, 0, 0.32), neck.towards(head, 0, -0.32))
        length = float(np.hypot(head.row - tail.row, head.col - tail.col))
        labels.append((tail.towards(head, 0.27 * length), ",".join(names), color))
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
