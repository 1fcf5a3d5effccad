"""Scripted players of Mini-Pacman: for comparison, and for imitation.

    python benchmarks/mini_pacman_player.py [--games 300]

Writes the mean returns of four players with 95% intervals into results/mini-pacman-player.json. To test whether a
network can represent their behavior, run `rl-train --imitate benchmarks.mini_pacman_player:Player`.

All know the maze with its food and pills. They take the shortest path to food over cells that no ghost reaches by one
step later. With power they walk to the nearest ghost that they reach in time; without a safe path they take the step
that leaves the nearest ghost furthest. Two of them eat pills like food. The other two hunt: while ghosts and pills are
left, they walk to a pill, wait next to it until a ghost is 4 steps away, and eat the pill. One player of each kind
knows where all ghosts are; the other sees those in the window and remembers others for 3 steps.
"""

import argparse
import json
from collections import deque
from pathlib import Path

import numpy as np

from engram.envs.arrays import Array
from engram.envs.mini_pacman import MiniPacmanBatch
from engram.envs.mini_pacman.rules import FOOD, FULL_BOARD, MOVES, REFLECTED, WALL, WIDTH
from engram.launch.evaluate.episodes import mean_interval
from engram.launch.metrics.provenance import provenance

CELLS = np.flatnonzero(FULL_BOARD != WALL).tolist()
WAYS = {at: [(a, at + int(MOVES[a])) for a in (1, 2, 3, 4) if FULL_BOARD[at + MOVES[a]] != WALL] for at in CELLS}
"""Actions and neighbors of every corridor cell."""


def _distances(start: int) -> Array:
    """Return the number of steps from one cell to every other cell."""
    distance, queue = np.full(len(FULL_BOARD), 10_000), deque([start])
    distance[start] = 0
    while queue:
        here = queue.popleft()
        for _, there in WAYS[here]:
            if distance[there] == 10_000:
                distance[there] = distance[here] + 1
                queue.append(there)
    return distance


DISTANCE = {at: _distances(at) for at in CELLS}
NO_DANGER = np.full(len(FULL_BOARD), 10_000)


class Player:
    """A scripted player in a batch of environments.

    Args:
        batch: environments whose state the player reads.
        hunts: whether it saves pills for hunting.
        window: whether it sees only the ghosts in the window; None: if the observation is the window.
    """

    def __init__(self, batch: MiniPacmanBatch, hunts: bool = True, window: bool | None = None) -> None:
        self.batch, self.hunts = batch, hunts
        self.window = not batch.params.full_view if window is None else window
        self.seen: list[dict[int, int]] = [{} for _ in range(batch.num_envs)]  # Age of each remembered ghost, by cell

    def act(self, observation: Array, first: Array) -> Array:
        """Return an action for each environment [N]; 0 where the episode has ended."""
        state = self.batch.state
        actions = np.zeros(self.batch.num_envs, np.int64)
        for i in np.flatnonzero(~state.over):
            if first[i]:
                self.seen[i] = {}
            at, ghosts = int(state.pacman[i]), state.ghosts[i, : state.num_ghosts[i]].tolist()
            hunts = self.hunts and len(ghosts) > 0
            food = {int(cell) for cell in np.flatnonzero(state.board[i] == FOOD)}
            pills = set(state.pills[i, : state.num_pills[i]].tolist())
            known = self._look(i, at, ghosts) if self.window else ghosts
            actions[i] = choose(at, known, food, pills, int(state.power[i]), hunts)
        return REFLECTED[self.batch.state.reflection, actions]

    def _look(self, i: int, at: int, ghosts: list[int]) -> list[int]:
        def visible(cell: int) -> bool:
            return max(abs(cell // WIDTH - at // WIDTH), abs(cell % WIDTH - at % WIDTH)) <= 2

        left = {cell: age + 1 for cell, age in self.seen[i].items() if age < 3 and not visible(cell)}
        self.seen[i] = left | dict.fromkeys(filter(visible, ghosts), 0)
        return list(self.seen[i])


def choose(at: int, ghosts: list[int], food: set[int], pills: set[int], power: int, hunts: bool) -> int:
    """Choose the next action on the unmirrored map from the known ghosts."""
    danger = np.min([NO_DANGER, *(DISTANCE[ghost] for ghost in ghosts)], axis=0)
    near = int(danger[at])
    if power > near + 1:
        return walk(at, {ghost for ghost in ghosts if DISTANCE[at][ghost] == near}, NO_DANGER)[0] or 0
    if hunts and power > 6:
        danger = NO_DANGER
    if hunts and pills:
        action, distance = walk(at, pills, danger)
        if action is not None:
            return action if distance > 1 or near <= 4 else 0
    goals = (food - pills, food | pills) if hunts else (food | pills,)
    for action, _ in (walk(at, each, danger) for each in goals):
        if action is not None:
            return action
    return max([(0, at), *WAYS[at]], key=lambda way: danger[way[1]])[0]


def walk(at: int, goals: set[int], danger: Array) -> tuple[int | None, int]:
    """First action and length of the shortest safe path to one of `goals` other than `at`; None without a path."""
    distance, action, queue = {at: 0}, {at: 0}, deque([at])
    while queue:
        here = queue.popleft()
        if here in goals and here != at:
            return action[here], distance[here]
        for way, there in WAYS[here]:
            steps = distance[here] + 1
            if there not in distance and danger[there] > steps + 1:
                distance[there], action[there] = steps, action[here] or way
                queue.append(there)
    return None, 0


def play(games: int, hunts: bool, window: bool) -> Array:
    """Play one episode in each of `games` environments; return their returns, [games]."""
    batch = MiniPacmanBatch(games)
    player = Player(batch, hunts, window)
    observation, _ = batch.reset(seed=0)
    returns, over, first = np.zeros(games), np.zeros(games, bool), np.ones(games, bool)
    while not over.all():
        observation, reward, terminated, truncated, _ = batch.step(player.act(observation, first))
        returns += np.where(over, 0, reward)
        first = terminated | truncated
        over |= first
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=300)
    games = parser.parse_args().games
    result: dict[str, object] = {"games": games}
    for name, window in (("all ghosts", False), ("ghosts in the window", True)):
        for habit, hunts in (("eats pills like food", False), ("hunts", True)):
            result[f"{name}, {habit}"] = mean_interval(play(games, hunts, window)).plain()
            print(list(result.items())[-1], flush=True)
    file = Path(__file__).parent / "results" / "mini-pacman-player.json"
    file.write_text(json.dumps(provenance("numpy", "numba") | result, indent=1) + "\n")
