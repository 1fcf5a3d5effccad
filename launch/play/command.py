"""`rl-play`: play an environment in a terminal, with the observations of an agent."""

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from ... import zoo
from ...base.errors import user_errors
from ...base.files import replace_file
from ...base.settings import Settings, setting
from ...envs.registration import environment_names, is_environment
from ..run.command_line import parse, run_command
from .agent import Player
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
NEXT, QUIT, VIEW, RULES, WAIT = ("n", "\n"), ("q", "\x1b"), "v", "?", "f"
WAITS = 10  # Steps of waiting per key press, in environments with long waits
AGENT_FPS = 8.0
SLOWEST_FPS, FASTEST_FPS = 0.5, 256.0
AGENT_KEYS = "space go/pause   n step   +- speed   t take over   v view   ? rules   q quit"
HAND_KEYS = "t agent continues   arrows or digits act   n next   v view   ? rules   q quit"
PAUSE, TAKE_OVER = " ", "t"
SPEEDS = {"+": 2.0, "=": 2.0, "-": 0.5}

_HELP = f"""Play an environment ({", ".join(environment_names())}), or watch a trained agent and take over from it."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig(Settings):
    """The environment or agent to play, and the settings."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Environment, by short name or id; or a run directory or zoo:NAME, to watch its agent and take over from it."""
    full: bool = False
    """Show the whole board instead of the agent's view (the key v toggles it)."""
    seed: int = setting(0, (0, None))
    """Seed of the levels, at least 0."""
    env_args: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of the environment, KEY=VALUE; with a run, those that differ from the training run's."""
    fps: float = setting(0.0, (0, 1000))
    """Steps per second, with "stay" if no key is pressed; 0 waits for a key."""
    record: str = setting("", file="")
    """Output file (JSON) for environment, parameters, seed, actions and scores."""
    checkpoint: str = "latest"
    """With a run: latest, best or a step."""
    member: int = setting(-1, (-1, None))
    """With a run: which member of a population; -1 is the one with the highest mean return in training."""
    greedy: bool = False
    """With a run: take the most likely action instead of sampling one from the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.checkpoint, self.member, self.greedy) != ("latest", -1, False) and not self.is_run():
            raise ValueError("checkpoint, member and greedy are for a run directory or zoo:NAME, and none is given")

    def is_run(self) -> bool:
        """Whether an agent plays."""
        return self.name.startswith(zoo.PREFIX) or (not is_environment(self.name) and os.path.isdir(self.name))


def main(arguments: Sequence[str]) -> int:
    """Play according to the arguments; returns the exit code."""
    config = parse(PlayConfig, arguments, "rl-play", _HELP)
    with user_errors():
        return play(config)


def play(config: PlayConfig) -> int:
    """Let the user play until they quit."""
    player = _player(config) if config.is_run() else None
    game = player.game if player else Game(config.name, config.env_args, config.seed)
    if not player and config.fps and "stay" not in game.batch.action_names:
        raise ValueError(f"fps is {config.fps}, but {config.name} has no action that stays; allowed: 0")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("playing needs a terminal")
    game.begin()
    try:
        with Terminal() as terminal:
            table = _Table(game, terminal, config.full, player)
            if player:
                table.watch(player, config.fps or AGENT_FPS)
            else:
                table.play(config.fps)
    except KeyboardInterrupt:
        pass
    finally:
        if config.record:
            replace_file(Path(config.record), json.dumps(game.recording()).encode())
    print(_result(game))
    return 0


def _player(config: PlayConfig) -> Player:
    """The agent of the arguments."""
    options = {"checkpoint": config.checkpoint, "member": config.member, "greedy": config.greedy}
    return Player(config.name, env_args=config.env_args, seed=config.seed, **options)


class _Table:
    """A session that connects the player, the game and the screen."""

    def __init__(self, game: Game, terminal: Terminal, full: bool, player: Player | None = None) -> None:
        self.game, self.terminal, self.full, self.player = game, terminal, full, player
        names = list(game.batch.action_names)
        self.moves = {key: names.index(name) for name, keys in KEYS.items() if name in names for key in keys}
        self.numbered = [action for action, name in enumerate(names) if name not in KEYS]
        self.num_digits, self.typed = len(str(len(names) - 1)), ""
        self.stay = names.index("stay") if "stay" in names else None

    def play(self, fps: float) -> None:
        """Play until the player quits; in real time if `fps` is positive."""
        wait = round(1000 / fps) if fps else -1
        while True:
            self._show(self._keys())
            key = self.terminal.key(-1 if self.game.over else wait)
            if key in QUIT:
                return
            if key == "" and self.stay is not None and not self.game.over:
                self.game.act(self.stay)
            self._press(key)

    def watch(self, player: Player, fps: float) -> None:
        """Let an agent play until the viewer quits; the viewer may pause it, change its speed and play by hand."""
        pause, by_hand = True, False
        while True:
            waits = by_hand or pause
            who = "you play" if by_hand else "the agent waits" if pause else f"the agent plays, {fps:g} steps/s"
            self._show(HAND_KEYS if by_hand else AGENT_KEYS, f"   {who}")
            key = self.terminal.key(-1 if waits else max(round(1000 / fps), 1))
            if key in QUIT:
                return
            if key == TAKE_OVER:
                by_hand, pause = not by_hand, True
            elif key in SPEEDS:
                fps = min(max(fps * SPEEDS[key], SLOWEST_FPS), FASTEST_FPS)
            elif key in (VIEW, RULES):
                self._press(key)
            elif by_hand:
                if self.game.over and key in NEXT:
                    self.game.act(player.choose(0))
                elif not self.game.over and (move := self._move(key)) is not None:
                    self.game.act(player.choose(move))
            elif key == PAUSE:
                pause = not pause
            elif key in NEXT or key == "":
                self.game.act(player.choose())
                pause = pause or self.game.over

    def _press(self, key: str) -> None:
        if key == VIEW:
            self.full = not self.full
        elif key == RULES:
            self._show_rules()
        elif self.game.over:
            if key in NEXT:
                self.game.act(0)
        elif (move := self._move(key)) is not None:
            self.game.act(move)
        elif key == WAIT and self.stay is not None:
            for _ in range(WAITS):
                if not self.game.over:
                    self.game.act(self.stay)

    def _move(self, key: str) -> int | None:
        """The action of a key, or of the digits typed so far; None while the number is incomplete or not an action."""
        if key in self.moves or key not in "0123456789" or not key:
            return self.moves.get(key)
        self.typed += key
        if len(self.typed) < self.num_digits:
            return None
        action, self.typed = int(self.typed), ""
        return action if action in self.numbered else None

    def _show(self, keys: str, who: str = "") -> None:
        game = self.game
        view = "the whole board" if self.full else "the agent's observation"
        status = f"step {game.steps}   reward {game.reward:+.6g}   score {game.score:.6g}{'' if game.over else who}"
        if game.over:
            status += f"   the end ({facts})" if (facts := game.facts()) else "   the end"
        title = f"{game.name}   seed {game.seed}, game {len(game.scores) + (not game.over)}   {view}"
        self.terminal.show([title, _purpose(game)], game.batch.paint(0, self.full), game.batch.symbols, status, keys)

    def _keys(self) -> str:
        if self.game.over:
            return "n next game   v view   ? rules   q quit"
        names = list(self.game.batch.action_names)
        number = f"digits {self.typed:_<{self.num_digits}} act" if self.num_digits > 1 else f"{' '.join(names)} act"
        moves = "arrows move" if "up" in names else number
        stay = f"   space stay   f stay {WAITS} times" if self.stay is not None else ""
        return f"{moves}{stay}   v view   ? rules   q quit"

    def _show_rules(self) -> None:
        """The environment's docstring, page by page."""
        height, width = self.terminal.size
        text = inspect.cleandoc(type(self.game.batch).__doc__ or "").partition("\nArgs:")[0]
        lines = [part for line in (_purpose(self.game), "", *text.splitlines()) for part in _wrapped(line, width)]
        page = max(height - 1, 1)
        for start in range(0, len(lines), page):
            self.terminal.lines(*lines[start : start + page], "any key continues")
            self.terminal.key(-1)


def _purpose(game: Game) -> str:
    """The first line of the environment's module."""
    return (sys.modules[type(game.batch).__module__].__doc__ or "").partition("\n")[0]


def _wrapped(line: str, width: int) -> list[str]:
    """A line wrapped to `width` characters, each part indented like the first."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=indent) or [""]


def _result(game: Game) -> str:
    """The scores as text."""
    lines = [f"game {k}: score {score:.6g}" for k, score in enumerate(game.scores, start=1)]
    if not game.over:
        lines.append(f"game {len(lines) + 1}: score {game.score:.6g} after {game.steps} steps, not finished")
    return "\n".join(lines)


def run(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rl-play`."""
    run_command("rl-play", main, arguments)
