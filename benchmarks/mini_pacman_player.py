"""A scripted player of Mini-Pacman that knows the whole maze: for comparison, and for imitation.

    python benchmarks/mini_pacman_player.py [--games 300]

Writes the mean return with a 95% interval into results/mini-pacman-player.json. To test whether a network can represent
its behavior, run `rl-train --imitate benchmarks.mini_pacman_player:Player`.

It takes the shortest path to food or a pill over cells that no ghost reaches by one step later. With power it walks to
the nearest ghost that it reaches in time; without a safe path it takes the step that leaves the nearest ghost furthest.
"""

import argparse
import json
from collections import deque
from pathlib import Path

import numpy as np

from engram.envs.arrays import Array
from engram.envs.mini_pacman import MiniPacmanBatch
from engram.envs.mini_pacman.rules import FOOD, FULL_BOARD, MOVES, REFLECTED, WALL
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


class Player:
    """The scripted player in a batch of environments.

    Args:
        batch: environments whose state the player reads.
    """

    def __init__(self, batch: MiniPacmanBatch) -> None:
        self.batch = batch

    def act(self, observation: Array, first: Array) -> Array:
        """Return an action for each environment [N]; 0 where the episode has ended."""
        state = self.batch.state
        actions = np.zeros(self.batch.num_envs, np.int64)
        for i in np.flatnonzero(~state.over):
            ghosts = state.ghosts[i, : state.num_ghosts[i]].tolist()
            goals = {int(cell) for cell in np.flatnonzero(state.board[i] == FOOD)}
            goals |= set(state.pills[i, : state.num_pills[i]].tolist())
            actions[i] = choose(int(state.pacman[i]), ghosts, goals, int(state.power[i]))
        return REFLECTED[self.batch.state.reflection, actions]


def choose(at: int, ghosts: list[int], goals: set[int], power: int) -> int:
    """Choose the next action on the unmirrored map.

    Pacman avoids no ghost if its power lasts until it reaches the nearest one.
    """
    near = min((DISTANCE[at][ghost] for ghost in ghosts), default=10_000)
    hunting = power > near + 1
    danger = np.full(len(FULL_BOARD), 10_000)
    if not hunting:
        for ghost in ghosts:
            danger = np.minimum(danger, DISTANCE[ghost])
    else:
        goals = {ghost for ghost in ghosts if DISTANCE[at][ghost] == near}
    distance, action, queue = {at: 0}, {at: 0}, deque([at])
    while queue:
        here = queue.popleft()
        if here in goals and here != at:
            return action[here]
        for way, there in WAYS[here]:
            steps = distance[here] + 1
            if there not in distance and danger[there] > steps + 1:
                distance[there], action[there] = steps, action[here] or way
                queue.append(there)
    return max([(0, at), *WAYS[at]], key=lambda way: danger[way[1]])[0]


def play(games: int) -> Array:
    """Play one episode in each of `games` environments; return their returns, [games]."""
    batch = MiniPacmanBatch(games)
    player = Player(batch)
    observation, _ = batch.reset(seed=0)
    returns, over = np.zeros(games), np.zeros(games, bool)
    while not over.all():
        observation, reward, terminated, truncated, _ = batch.step(player.act(observation, over))
        returns += np.where(over, 0, reward)
        over |= terminated | truncated
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=300)
    games = parser.parse_args().games
    result = {"games": games, "return": mean_interval(play(games)).plain()}
    print(result)
    file = Path(__file__).parent / "results" / "mini-pacman-player.json"
    file.write_text(json.dumps(provenance("numpy", "numba") | result, indent=1) + "\n")
