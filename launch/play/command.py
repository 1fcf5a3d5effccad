"""`rl-play`: a person plays a world in a terminal, and sees no more than an agent does."""

import contextlib
import curses
import inspect
import json
import locale
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from ...base.files import replace_file
from ...base.messages import nearest
from ...envs.registration import is_world, make_batch, world_names
from ..train.command_line import UsageError, parse, run_command
from .screen import Screen, words

FORMAT = 1
"""Version of the recordings."""
KEYS = {
    "up": (curses.KEY_UP, ord("w"), ord("k")),
    "down": (curses.KEY_DOWN, ord("s"), ord("j")),
    "left": (curses.KEY_LEFT, ord("a"), ord("h")),
    "right": (curses.KEY_RIGHT, ord("d"), ord("l")),
    "stay": (ord(" "), ord(".")),
}
"""Keys by the name of the action; actions with other names have the keys 0, 1, 2 and so on."""
NEXT, QUIT, VIEW, RULES, WAIT = (ord("n"), ord("\n")), (ord("q"), 27), ord("v"), ord("?"), ord("f")
WAITS = 10
"""Steps of staying for one key, in worlds that make a player wait."""
REPLAY_FPS = 8.0

_HELP = f"""Play a world: {", ".join(world_names())}."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """What to play and how."""

    name: tyro.conf.Positional[str] = ""
    """World, by its short name or id; a recording says it by itself."""
    full: bool = False
    """Show the whole board instead of what an agent sees (the key v changes it, too)."""
    seed: int = 0
    """Seed of the levels, at least 0."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the world, KEY=VALUE."""
    fps: float = 0.0
    """Steps per second, with "stay" where no key is pressed; 0 waits for a key. For a replay, 0 is 8."""
    record: str = ""
    """File to which seed, parameters and actions are written."""
    replay: str = ""
    """Recording to be shown again; without a terminal, only its scores are printed."""

    def __post_init__(self) -> None:
        if self.seed < 0 or not 0 <= self.fps <= 1000:
            raise ValueError(f"seed is {self.seed} and fps is {self.fps}; allowed: at least 0, and 0..1000")
        if self.record and not Path(self.record).parent.is_dir():
            raise ValueError(f"record is {self.record!r}; there is no directory {str(Path(self.record).parent)!r}")
        if bool(self.name) == bool(self.replay):
            raise ValueError("give either the name of a world to play, or --replay FILE")


class Game:
    """One environment, everything done in it, and what it was worth.

    Args:
        name: short name or id of one of our own worlds.
        env_args: its parameters.
        seed: of its levels.
    """

    def __init__(self, name: str, env_args: dict[str, Any], seed: int) -> None:
        if not is_world(name):
            raise ValueError(f"unknown world {name!r}; did you mean: {nearest(name, world_names())}?")
        self.name, self.env_args, self.seed = name, env_args, seed
        self.batch = make_batch(name, 1, **env_args)
        self.batch.reset(seed=seed)
        self.actions: list[int] = []
        self.scores: list[float] = []
        """Scores of the episodes that have ended."""
        self.score, self.reward, self.steps, self.over = 0.0, 0.0, 0, False

    def act(self, action: int) -> None:
        """Take a step, or begin the next episode if one has just ended."""
        _, reward, terminated, truncated, _ = self.batch.step(np.array([action]))
        self.actions.append(action)
        if self.over:
            self.score, self.steps = 0.0, 0
        else:
            self.steps += 1
        self.reward, self.over = float(reward[0]), bool(terminated[0] or truncated[0])
        self.score += self.reward
        if self.over:
            self.scores.append(self.score)

    def facts(self) -> str:
        """What the world reports of the episode."""
        values = self.batch.episode_facts(np.array([0]))[0]
        named = zip(self.batch.episode_fields, values, strict=True)
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in named)

    def recording(self) -> dict[str, Any]:
        """All that is needed to see it again."""
        return {
            "format": FORMAT,
            "env": self.name,
            "env_args": self.env_args,
            "seed": self.seed,
            "actions": self.actions,
            "scores": self.scores,
            "unfinished_score": None if self.over else self.score,
        }


def main(arguments: Sequence[str]) -> int:
    """Play or replay as the words say; returns the exit code."""
    config = parse(PlayConfig, arguments, "rl-play", _HELP)
    _use_unicode()
    try:
        return replay(config) if config.replay else play(config)
    except (ValueError, TypeError) as problem:
        raise UsageError(str(problem)) from problem
    except curses.error as problem:
        terminal = os.environ.get("TERM", "")
        raise UsageError(f"no colours in this terminal (TERM is {terminal!r}): {problem}") from problem


def play(config: PlayConfig) -> int:
    """A person plays until they quit."""
    print(f"rl-play: {config.name} begins (its rules are compiled at first use)", file=sys.stderr)
    game = Game(config.name, config.env_args, config.seed)
    if config.fps and "stay" not in game.batch.action_names:
        raise ValueError(f"fps is {config.fps}, but {config.name} has no action that stays; allowed: 0")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("a person plays in a terminal, and this is none; --replay FILE works without")
    try:
        curses.wrapper(lambda window: _Table(game, Screen(window), config.full).play(config.fps))
    except KeyboardInterrupt:
        pass
    finally:
        if config.record:
            replace_file(Path(config.record), json.dumps(game.recording()).encode())
    print(_result(game))
    return 0


def replay(config: PlayConfig) -> int:
    """Show a recording again and print its scores; exit code 1 if they are not those that it was made with."""
    saved = _load(config.replay)
    game = Game(saved["env"], saved["env_args"], saved["seed"])
    rest = list(saved["actions"])
    if sys.stdin.isatty() and sys.stdout.isatty():
        rest = curses.wrapper(lambda window: _Table(game, Screen(window), config.full).replay(rest, config.fps))
    for action in rest:
        game.act(action)
    print(_result(game))
    played = game.recording()
    if any(played[key] != saved[key] for key in ("scores", "unfinished_score")):
        print(f"rl-play: the recording says {saved['scores']}: the world has changed since", file=sys.stderr)
        return 1
    return 0


class _Table:
    """Where the player, the game and the screen meet."""

    def __init__(self, game: Game, screen: Screen, full: bool) -> None:
        self.game, self.screen, self.full = game, screen, full
        names = list(game.batch.action_names)
        self.moves = {key: names.index(name) for name, keys in KEYS.items() if name in names for key in keys}
        self.moves |= {ord(str(action)): action for action, name in enumerate(names) if name not in KEYS}
        self.stay = names.index("stay") if "stay" in names else None

    def play(self, fps: float) -> None:
        """Until the player quits; in real time if `fps` is positive."""
        wait = round(1000 / fps) if fps else -1
        while True:
            self._show(self._keys())
            key = self.screen.key(-1 if self.game.over else wait)
            if key in QUIT:
                return
            if key == -1 and self.stay is not None and not self.game.over:
                self.game.act(self.stay)
            self._press(key)

    def replay(self, actions: list[int], fps: float) -> list[int]:
        """Show the actions one after the other; what is left of them when the viewer quits."""
        pause, wait = False, round(1000 / (fps or REPLAY_FPS))
        while actions:
            state = "paused, space goes on" if pause else "space pauses"
            self._show(f"replay, {len(actions)} steps left   {state}   v view   q quit")
            key = self.screen.key(-1 if pause else wait)
            if key in QUIT:
                return actions
            if key == ord(" "):
                pause = not pause
            elif key == VIEW:
                self.full = not self.full
            elif key == -1:
                self.game.act(actions.pop(0))
        return actions

    def _press(self, key: int) -> None:
        if key == VIEW:
            self.full = not self.full
        elif key == RULES:
            self._show_rules()
        elif self.game.over:
            if key in NEXT:
                self.game.act(0)
        elif key in self.moves:
            self.game.act(self.moves[key])
        elif key == WAIT and self.stay is not None:
            for _ in range(WAITS):
                if not self.game.over:
                    self.game.act(self.stay)

    def _show(self, keys: str) -> None:
        game = self.game
        view = "the whole board" if self.full else "what an agent sees"
        status = f"step {game.steps}   reward {game.reward:+.6g}   score {game.score:.6g}"
        if game.over:
            status += f"   the end ({game.facts()})"
        head = [f"{game.name}   seed {game.seed}, game {len(game.scores) + (not game.over)}   {view}"]
        self.screen.show(head, game.batch.paint(0, self.full), [status, keys])

    def _keys(self) -> str:
        if self.game.over:
            return "n next game   v view   ? rules   q quit"
        names = list(self.game.batch.action_names)
        moves = "arrows move" if "up" in names else f"{' '.join(names)} act"
        stay = f"   space stay   f stay {WAITS} times" if self.stay is not None else ""
        return f"{moves}{stay}   v view   ? rules   q quit"

    def _show_rules(self) -> None:
        """What the documentation says of the world, up to its parameters, page by page."""
        text = (inspect.getdoc(type(self.game.batch)) or "").partition("\nArgs:")[0]
        height, width = self.screen.size()
        lines = [part for line in text.splitlines() for part in _wrapped(line, max(width - 1, 20))]
        page = max(height - 2, 1)
        for start in range(0, len(lines), page):
            self.screen.lines([*map(words, lines[start : start + page]), [], words("any key goes on")])
            self.screen.key(-1)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in parts of at most `width` characters, each indented like the first."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=indent) or [""]


def _use_unicode() -> None:
    """Let curses write block characters, also where the user's locale does not."""
    locale.setlocale(locale.LC_ALL, "")
    if locale.nl_langinfo(locale.CODESET).upper() != "UTF-8":
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


def _load(file: str) -> dict[str, Any]:
    try:
        saved = json.loads(Path(file).read_text())
    except (OSError, json.JSONDecodeError) as problem:
        raise ValueError(f"cannot read the recording {file}: {problem}") from problem
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ValueError(f"{file} is no recording of rl-play in format {FORMAT}")
    return dict(saved)  # pyright: ignore[reportUnknownArgumentType]


def _result(game: Game) -> str:
    """The scores in words."""
    lines = [f"game {k}: score {score:.6g}" for k, score in enumerate(game.scores, start=1)]
    if not game.over:
        lines.append(f"game {len(lines) + 1}: score {game.score:.6g} after {game.steps} steps, not finished")
    return "\n".join(lines)


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-play`."""
    run_command("rl-play", main, arguments)
