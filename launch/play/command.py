"""`rl-play`: play an environment in a terminal, with the observations of an agent."""

import inspect
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from ...base.errors import refuse, user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ...envs.registration import environment_names
from ..config.command_line import parse
from .game import Game
from .terminal import Terminal

KEYS = {
    "up": ("up", "w", "k"),
    "down": ("down", "s", "j"),
    "left": ("left", "a", "h"),
    "right": ("right", "d", "l"),
    "stay": (" ", "."),
}
"""Keys by the name of the action; other actions are typed as numbers, with leading zeros for ten or more actions."""
NEXT, QUIT, VIEW, RULES = ("n", "\n"), ("q", "\x1b"), "v", "?"
COMMON_KEYS = "v view   ? rules   q quit"

_HELP = f"""Play an environment ({", ".join(environment_names())})."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig(Settings):
    """The environment to play, and the settings."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Environment, by short name or id."""
    full: bool = False
    """Show the whole board instead of the agent's view (the key v toggles it)."""
    seed: int = setting(0, (0, None))
    """Seed of the levels, at least 0."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the environment, KEY=VALUE."""
    fps: float = setting(0.0, (0, 1000))
    """Steps per second, with "stay" if no key is pressed; 0 waits for a key."""
    record: str = setting("", file="")
    """Output file (JSON) for environment, parameters, seed, actions and scores."""


def main(arguments: Sequence[str]) -> int:
    """Play according to the arguments; returns the exit code."""
    config = parse(PlayConfig, arguments, "rl-play", _HELP)
    with user_errors():
        return play(config)


def play(config: PlayConfig) -> int:
    """Let the user play until they quit."""
    game = Game(config.name, config.env_args, config.seed)
    refuse(
        config.fps and "stay" not in game.batch.action_names,
        f"fps is {config.fps}, but {config.name} has no action that stays; allowed: 0",
    )
    refuse(not (sys.stdin.isatty() and sys.stdout.isatty()), "playing needs a terminal")
    game.begin()
    try:
        with Terminal() as terminal:
            _Session(game, terminal, config).run()
    except KeyboardInterrupt:
        pass
    finally:
        if config.record:
            replace_file(Path(config.record), json.dumps(game.recording()).encode())
    for number, score in enumerate(game.scores, 1):
        print(f"game {number}: score {score:.6g}")
    if not game.over:
        print(f"game {len(game.scores) + 1}: score {game.score:.6g} after {game.steps} steps, not finished")
    return 0


class _Session:
    """Connects the user's keys, the game and the screen."""

    def __init__(self, game: Game, terminal: Terminal, config: PlayConfig) -> None:
        self.game, self.terminal, self.full, self.fps = game, terminal, config.full, config.fps
        names = list(game.batch.action_names)
        self.moves = {key: names.index(name) for name, keys in KEYS.items() if name in names for key in keys}
        self.numbered = [action for action, name in enumerate(names) if name not in KEYS]
        self.num_digits, self.typed = len(str(len(names) - 1)), ""

    def run(self) -> None:
        """Play until the user quits."""
        while True:
            self._show()
            waits = not self.fps or self.game.over
            key = self.terminal.key(-1 if waits else max(round(1000 / self.fps), 1))
            if key in QUIT:
                return
            if key == VIEW:
                self.full = not self.full
            elif key == RULES:
                self._show_rules()
            elif self.game.over:
                if key in NEXT:
                    self.game.act(0)
            elif (action := self.moves[" "] if key == "" else self._action(key)) is not None:
                self.game.act(action)

    def _action(self, key: str) -> int | None:
        """The action of a key, or of the digits typed so far; None while the number is incomplete or not an action."""
        if key in self.moves or key not in "0123456789":
            return self.moves.get(key)
        self.typed += key
        if len(self.typed) < self.num_digits:
            return None
        action, self.typed = int(self.typed), ""
        return action if action in self.numbered else None

    def _show(self) -> None:
        game = self.game
        view = "the whole board" if self.full else "the agent's observation"
        status = f"step {game.steps}   reward {game.reward:+.6g}   score {game.score:.6g}"
        if game.over:
            status += f"   the end ({facts})" if (facts := game.facts()) else "   the end"
        title = f"{game.name}   seed {game.seed}, game {len(game.scores) + (not game.over)}   {view}"
        lines = [title, _purpose(game)]
        self.terminal.show(lines, game.batch.paint(0, self.full), game.batch.symbols, status, self._keys())

    def _keys(self) -> str:
        if self.game.over:
            return f"n next game   {COMMON_KEYS}"
        names = list(self.game.batch.action_names)
        number = f"digits {self.typed:_<{self.num_digits}} act" if self.num_digits > 1 else f"{' '.join(names)} act"
        stay = "   space stay" if "stay" in names else ""
        return f"{'arrows move' if 'up' in names else number}{stay}   {COMMON_KEYS}"

    def _show_rules(self) -> None:
        """The environment's docstring, page by page."""
        height, width = self.terminal.size
        text = inspect.cleandoc(type(self.game.batch).__doc__ or "").partition("\nArgs:")[0]
        lines: list[str] = []
        for line in (_purpose(self.game), "", *text.splitlines()):
            indent = line[: len(line) - len(line.lstrip())]
            lines += textwrap.wrap(line, width, subsequent_indent=indent) or [""]
        page = max(height - 1, 1)
        for start in range(0, len(lines), page):
            self.terminal.lines(*lines[start : start + page], "any key continues")
            self.terminal.key(-1)


def _purpose(game: Game) -> str:
    """The first line of the environment's module."""
    return (sys.modules[type(game.batch).__module__].__doc__ or "").partition("\n")[0]
