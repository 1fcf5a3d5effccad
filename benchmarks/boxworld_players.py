"""Solved rates of BoxWorld players with the agents' observations and perfect memory, with or without look-ahead.

    python benchmarks/boxworld_players.py [--levels 500]

The paper's levels: a window of 5 x 5 cells, paths of 1 to 5 locks, 0 to 5 distractors, 120 steps. A player walks to the
nearest useful object, else to the cell that reveals most of the room. The three players differ in the boxes that they
open with their key:

    any     the nearest box that the key fits
    gem     the gem's box if it is known and the key fits, else the nearest
    ahead   only a box that is known to lead to the gem; until then it explores

Writes the solved rate, with a 95% interval, and the mean length to results/boxworld-players.json.
"""

import argparse
import json
from collections import deque
from pathlib import Path

import numpy as np

from engram.envs.arrays import Array
from engram.envs.boxworld import BoxWorldBatch
from engram.envs.boxworld.rules import BAIT, FLOOR, GEM, KEY, LOCK, NOTHING, NUM_COLORS
from engram.launch.evaluate.episodes import rate_interval
from engram.launch.metrics.provenance import provenance

Place = tuple[int, int]

STRATEGIES = ("any", "gem", "ahead")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
UNSEEN = -1
REACH = 2
"""Cells that the window shows on each side."""
WORTH = 0.6
"""Additional steps that a player walks for one more unknown cell."""


class Player:
    """A player that remembers the cells it has seen and decides where to walk."""

    def __init__(self, strategy: str, side: int) -> None:
        self.strategy = strategy
        self.known = np.full((side, side), UNSEEN)
        self.inside = slice(REACH, side - REACH)

    def see(self, board: Array, at: Place) -> None:
        """Remember the cells of the window, in which all locks look alike."""
        window = tuple(slice(k - REACH, k + REACH + 1) for k in at)
        cells = board[window].astype(np.int64)
        self.known[window] = np.where(cells >= BAIT, cells - NUM_COLORS, cells)

    def walk(self, at: Place, held: int) -> int:
        """Return the next action for the held key (NOTHING: none)."""
        targets = self._boxes(held) | self._loose(held)
        distance, action = {at: 0}, {at: 0}
        queue, free = deque([at]), self._free()
        while queue:
            here = queue.popleft()
            if here in targets and here != at:
                return action[here]
            for number, (down, right) in enumerate(MOVES):
                neighbor = (here[0] + down, here[1] + right)
                if neighbor not in distance and (free[neighbor[0]][neighbor[1]] or neighbor in targets):
                    distance[neighbor] = distance[here] + 1
                    action[neighbor] = action[here] if here != at else number
                    queue.append(neighbor)
        unseen = self._unseen()
        new = {place: unseen[place[0]][place[1]] for place in distance if place != at}
        ways = [(distance[place] - WORTH * new[place], place) for place in new if new[place]]
        return action[min(ways or [(0.0, next(iter(new)))])[1]]

    def _boxes(self, held: int) -> set[Place]:
        """Return the locks to open with the held key."""
        boxes = {(int(r), int(c)): int(self.known[r, c - 1]) for r, c in np.argwhere(self.known >= LOCK)}
        fitting = {place for place in boxes if self.known[place] - LOCK == held - KEY}
        if self.strategy == "any":
            return fitting
        gem = {place for place in fitting if boxes[place] == GEM}
        if self.strategy == "gem":
            return gem or fitting
        leading = {GEM}  # contents from which the gem is known to be reached
        while more := {KEY + self.known[at] - LOCK for at, content in boxes.items() if content in leading} - leading:
            leading |= more
        useful = {place for place in fitting if boxes[place] in leading}
        return useful if useful or (self.known[self.inside, self.inside] == UNSEEN).any() else fitting

    def _loose(self, held: int) -> set[Place]:
        """Return the gem if it is loose and, without a held key, loose keys."""
        contents = (self.known == GEM) | ((held == NOTHING) & (self.known >= KEY) & (self.known < LOCK))
        return {(int(r), int(c)) for r, c in np.argwhere(contents) if UNSEEN < self.known[r, c + 1] < LOCK}

    def _free(self) -> list[list[bool]]:
        """Return for each cell whether it is floor or unknown."""
        free = np.zeros_like(self.known, dtype=bool)
        free[self.inside, self.inside] = np.isin(self.known[self.inside, self.inside], (FLOOR, UNSEEN))
        return free.tolist()

    def _unseen(self) -> list[list[int]]:
        """Return for each cell the number of cells that a player would see for the first time from there."""
        unseen = np.zeros_like(self.known)
        unseen[self.inside, self.inside] = self.known[self.inside, self.inside] == UNSEEN
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(unseen, REACH), (2 * REACH + 1,) * 2)
        return windows.sum((2, 3)).tolist()


class Ahead:
    """The third player in a batch of environments, for `rl-train --imitate benchmarks.boxworld_players:Ahead`."""

    def __init__(self, batch: BoxWorldBatch) -> None:
        self.batch = batch
        self.players = [Player("ahead", batch.state.board.shape[1]) for _ in range(batch.num_envs)]

    def act(self, observation: Array, first: Array) -> Array:
        """Return an action for each environment [N]; 0 where the episode has ended."""
        state, actions = self.batch.state, np.zeros(self.batch.num_envs, np.int64)
        for i in np.flatnonzero(~state.over):
            if first[i]:
                self.players[i] = Player("ahead", state.board.shape[1])
            at = (int(state.row[i]), int(state.col[i]))
            self.players[i].see(state.board[i], at)
            actions[i] = self.players[i].walk(at, int(state.held[i]))
        return actions

    def save(self) -> dict[str, Array]:
        """Return the state of the players: the known cells."""
        return {"known": np.stack([player.known for player in self.players])}

    def restore(self, saved: dict[str, Array]) -> None:
        """Continue from a state returned by `save`."""
        for player, cells in zip(self.players, saved["known"], strict=True):
            player.known[:] = cells


def play(strategy: str, levels: int) -> dict[str, object]:
    """Play `levels` levels; return the solved rate and the mean number of steps."""
    environment = BoxWorldBatch(levels)
    environment.reset(seed=0)
    state = environment.state
    players = [Player(strategy, state.board.shape[1]) for _ in range(levels)]
    solved, steps = np.zeros(levels, bool), np.zeros(levels, np.int64)
    playing = np.ones(levels, bool)
    while playing.any():
        actions = np.zeros(levels, np.int64)
        for i in np.flatnonzero(playing):
            at = (int(state.row[i]), int(state.col[i]))
            players[i].see(state.board[i], at)
            actions[i] = players[i].walk(at, int(state.held[i]))
        _, rewards, terminated, truncated, _ = environment.step(actions)
        steps += playing
        solved |= playing & terminated & (rewards > 0)
        playing &= ~(terminated | truncated)
    environment.close()
    share = rate_interval(solved.astype(float))
    interval = f"[{share.low:.1%}, {share.high:.1%}]"
    print(f"{strategy:6} solved {share.mean:.1%} {interval}, {steps.mean():.0f} steps", flush=True)
    return {"solved": share._asdict(), "levels": levels, "steps": round(float(steps.mean()), 1)}


def main() -> None:
    """Run the three players and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=500)
    levels = parser.parse_args().levels
    results = {strategy: play(strategy, levels) for strategy in STRATEGIES}
    file = Path(__file__).parent / "results" / "boxworld-players.json"
    file.write_text(json.dumps(provenance() | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
