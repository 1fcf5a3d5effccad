"""`rl-play`: play an environment in a terminal, with the observations of an agent."""

import json
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.color import Color as RichColor
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ... import zoo
from ...agents.process import prepare_process
from ...base.errors import check_name, refuse, user_errors
from ...base.files import replace_file
from ...base.settings import setting
from ...envs.drawing import Canvas, Color
from ...envs.registration import environment_names, is_environment, make_batch, purpose
from ..api.agent import TrainedAgent, load_agent
from ..config.command_line import parse
from ..runs.trained import ActingAgent, evaluation_seed

COMPILING = 30  # Seconds to compile the slowest environment
KEYS = {
    "up": ("up", "w", "k"),
    "down": ("down", "s", "j"),
    "left": ("left", "a", "h"),
    "right": ("right", "d", "l"),
    "stay": (" ", "."),
}
"""Keys by the name of the action; other actions are typed as numbers, with leading zeros if there are over ten."""
NEXT, QUIT, VIEW, PAUSE = ("n", "\n"), ("q", "\x1b"), "v", " "
AGENT_FPS, FASTEST_FPS = 8.0, 256.0  # Steps per second of an agent
SPEEDS = {"+": 2.0, "=": 2.0, "-": 0.5}
GAP = 2  # Columns between the board and its legend
UPPER_HALF = "▀"  # Shows two pixels, one above the other: ink and floor
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_KEY = re.compile(r"\x1b[\[O][\d;]*(?:([A-D])|.)|.", re.DOTALL)  # an arrow, another escape sequence, or a character
_HELP = f"""Play an environment ({", ".join(environment_names())}), or watch a trained agent and take over from it."""


def with_legend(canvas: Canvas, symbols: Sequence[tuple[Color, str]], height: int, width: int) -> RenderableType:
    """Render the canvas with a legend of its colors on the right, unless too little space would remain for it."""
    need = max((len(text) for _, text in symbols), default=0) + 3 + GAP
    if len(symbols) > height or canvas.cols > width - need or need > width // 2:
        return render(canvas, height, width)
    table = Table.grid(padding=(0, GAP, 0, 0))
    legend = Text("\n").join(Text.assemble(("██ ", style(color)), text) for color, text in symbols)
    table.add_row(render(canvas, height, width - need), legend)
    return table


def render(canvas: Canvas, height: int, width: int) -> Text:
    """Fit the canvas into `height` lines of `width` characters, two pixels each, with its texts on top."""
    scale = min(width / canvas.cols, 2 * height / canvas.rows)  # pixels per cell
    scale = scale if scale < 1 else float(int(scale))
    columns, lines = max(int(canvas.cols * scale), 1), max(round(canvas.rows * scale / 2), 1)
    characters = {
        (int((row + 0.5) * scale / 2), k): (character, color)
        for row, col, text, color, _ in canvas.words
        for k, character in enumerate(text, start=int(col * scale + 0.5))
    }
    text = Text(no_wrap=True, overflow="crop")
    for line, (uppers, lowers) in enumerate(canvas.pixels(2 * lines, columns).reshape(lines, 2, columns, 3).tolist()):
        text.append("\n" * (line > 0))
        for column, (upper, lower) in enumerate(zip(uppers, lowers, strict=True)):
            character, color = characters.get((line, column), (UPPER_HALF, tuple(upper)))
            text.append(character, style(color, tuple(lower)))
    return text


@cache
def style(ink: Color, floor: Color | None = None) -> Style:
    """Colors of a character and of the space behind it; None is the terminal's default."""
    return Style.from_color(RichColor.from_rgb(*ink), floor and RichColor.from_rgb(*floor))


class Terminal:
    """The full screen of a terminal, without scrolling, with single key presses."""

    def __init__(self) -> None:
        self.console, self._typed = Console(highlight=False), ""

    @contextmanager
    def opened(self) -> Generator[None]:
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        try:
            with self.console.screen():
                yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def show(self, *lines: RenderableType) -> None:
        texts = [Text(line, no_wrap=True, overflow="crop") if isinstance(line, str) else line for line in lines]
        self.console.update_screen(Group(*texts))

    def key(self, milliseconds: int) -> str:
        """Return the next key: a character, or up, down, left, right; "" after the timeout (none if it is negative)."""
        if not self._typed:
            wait = None if milliseconds < 0 else milliseconds / 1000
            if not select.select([sys.stdin], [], [], wait)[0]:
                return ""
            self._typed = os.read(sys.stdin.fileno(), 1 << 10).decode(errors="replace")
        match = _KEY.match(self._typed)
        assert match is not None
        self._typed = self._typed[match.end() :]
        return ARROWS[match[1]] if match[1] else match[0]


class Game:
    """An environment with all actions and scores; an agent observes every step, and acts where the user does not."""

    def __init__(self, name: str, env_args: dict[str, Any], seed: int, agent: TrainedAgent | None = None) -> None:
        self.name, self.env_args, self.seed, self.agent = name, env_args, seed, agent
        self.batch = make_batch(name, 1, **env_args)
        self.actions: list[int] = []
        self.scores: list[float] = []  # Scores of the finished episodes
        self.score, self.reward, self.steps = 0.0, 0.0, 0
        self.over = False  # Whether the game has ended; the next action begins another
        self._began = True  # Whether the observation is the first of an episode

    def begin(self) -> None:
        """Compile the rules, so that no key press waits for the compiler, and begin the first game."""
        print(f"rl-play: compiling {self.name}, once, up to {COMPILING} s", file=sys.stderr, flush=True)
        self.batch.reset(seed=self.seed)
        self.batch.step(np.array([0]))
        self.observation, _ = self.batch.reset(seed=self.seed)

    def act(self, action: int | None = None) -> None:
        """Take a step with the user's action or, if it is None, the agent's; after the end, begin the next episode."""
        if self.agent:
            own = int(self.agent.act(self.observation, self.reward, began=self._began)[0])
            if action is not None:
                self.agent.acted(action)
            action = own if action is None else action
        assert action is not None
        self.observation, reward, terminated, truncated, _ = self.batch.step(np.array([action]))
        self.actions.append(action)
        self.score, self.steps = (0.0, 0) if self.over else (self.score, self.steps + 1)
        self._began, self.over = self.over, bool(terminated[0] or truncated[0])
        self.reward = float(reward[0])
        self.score += self.reward
        if self.over:
            self.scores.append(self.score)

    def facts(self) -> str:
        values = self.batch.episode_facts(np.array([0]))[0]
        named = zip(self.batch.episode_fields, values, strict=True)
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in named)

    def recording(self) -> dict[str, Any]:
        recorded = {name: getattr(self, name) for name in ("env_args", "seed", "actions", "scores")}
        return {"env": self.name, **recorded, "unfinished_score": None if self.over else self.score}


@dataclass(frozen=True, kw_only=True)
class PlayConfig(ActingAgent):
    """The environment or agent to play, and the settings; checkpoint, member and greedy apply to an agent."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Environment, by short name or id; or a run directory or zoo:NAME, to watch its agent and take over from it."""
    full: bool = False
    """Show the whole board instead of the agent's view (the key v toggles it)."""
    record: str = setting("", file="")
    """Output file (JSON) for environment, parameters, seed, actions and scores."""


def main(arguments: Sequence[str]) -> int:
    config = parse(PlayConfig, arguments, "rl-play", _HELP)
    with user_errors():
        game = _new_game(config)
    refuse(not (sys.stdin.isatty() and sys.stdout.isatty()), "playing needs a terminal")
    game.begin()
    try:
        with (terminal := Terminal()).opened():
            _Session(game, terminal, config.full).run()
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


def _new_game(config: PlayConfig) -> Game:
    if not config.run.startswith(zoo.PREFIX) and (is_environment(config.run) or not os.path.isdir(config.run)):
        if not is_environment(config.run):
            check_name("environment", config.run, environment_names())
        return Game(config.run, config.env_args, config.seed)
    prepare_process(1)
    choice = {name: getattr(config, name) for name in ("checkpoint", "member", "greedy", "seed", "env_args")}
    agent = load_agent(config.run, **choice)
    env, only = agent.config.env, "rl-play shows only engram's environments, rl-eval --gif any"
    refuse(not is_environment(env), f"{config.run} plays {env}; {only}")
    return Game(env, agent.config.env_args | config.env_args, evaluation_seed(config.seed), agent)


class _Session:
    def __init__(self, game: Game, terminal: Terminal, full: bool) -> None:
        self.game, self.terminal, self.full, self.fps, self.paused = game, terminal, full, AGENT_FPS, True
        self.names = list(game.batch.action_names)
        self.moves = {key: self.names.index(name) for name, keys in KEYS.items() if name in self.names for key in keys}
        self.num_digits, self.typed = len(str(len(self.names) - 1)), ""

    def run(self) -> None:
        """Play until the user quits. An action of the user pauses an agent that plays."""
        game = self.game
        while True:
            self._show()
            key = self.terminal.key(-1 if self.paused else max(round(1000 / self.fps), 1))
            if key in QUIT:
                return
            if key == VIEW:
                self.full = not self.full
            elif game.agent and key in SPEEDS:
                self.fps = min(max(self.fps * SPEEDS[key], 0.5), FASTEST_FPS)
            elif game.agent and key == PAUSE:
                self.paused = not self.paused
            elif (key in NEXT or key == "") and (game.agent or game.over):
                game.act(None if game.agent else 0)
                self.paused = self.paused or game.over
            elif not game.over and (action := self._action(key)) is not None:
                game.act(action)
                self.paused = True

    def _action(self, key: str) -> int | None:
        """The action of a key, or of the digits typed so far; None while the number is incomplete or not an action."""
        if key in self.moves or key not in "0123456789":
            return self.moves.get(key)
        self.typed += key
        if len(self.typed) < self.num_digits:
            return None
        action, self.typed = int(self.typed), ""
        return action if action < len(self.names) and self.names[action] not in KEYS else None

    def _show(self) -> None:
        game, (width, height) = self.game, self.terminal.console.size
        status = f"step {game.steps}   reward {game.reward:+.6g}   score {game.score:.6g}"
        if game.over:
            status += f"   the end ({facts})" if (facts := game.facts()) else "   the end"
        elif game.agent:
            status += "   the agent waits" if self.paused else f"   the agent plays, {self.fps:g} steps/s"
        view = "the whole board" if self.full else "the agent's observation"
        title = f"{game.name}   seed {game.seed}, game {len(game.scores) + (not game.over)}   {view}"
        board = with_legend(game.batch.paint(0, self.full), game.batch.symbols, max(height - 6, 1), width)
        digits = f"digits {self.typed:_<{self.num_digits}}" if self.num_digits > 1 else " ".join(self.names)
        keys = ["arrows move" if "up" in self.names else f"{digits} act"]
        if game.agent:
            keys += ["n step", "space go/pause", "+- speed"]
        elif game.over:
            keys = ["n next game"]
        elif "stay" in self.names:
            keys += ["space stay"]
        keys += ["v view", "q quit"]
        self.terminal.show(title, purpose(type(game.batch)), "", board, "", status, "   ".join(keys))
