"""`rl-play`: play an environment in a terminal, with the observations of an agent."""

import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.text import Text

from ... import zoo
from ...agents.process import prepare_process
from ...base.errors import refuse, user_errors
from ...base.files import replace_file
from ...base.messages import check_name
from ...base.settings import setting
from ...envs.registration import environment_names, is_environment, make_batch, purpose
from ..api.agent import TrainedAgent, load_agent
from ..config.command_line import parse
from ..runs.trained import ActingAgent, evaluation_seed
from .terminal import Terminal, with_legend

COMPILING = 30  # Seconds to compile the slowest environment
KEYS = {
    "up": ("up", "w", "k"),
    "down": ("down", "s", "j"),
    "left": ("left", "a", "h"),
    "right": ("right", "d", "l"),
    "stay": (" ", "."),
}
"""Keys by the name of the action; other actions are typed as numbers, with leading zeros if there are over ten."""
NEXT, QUIT, VIEW, RULES, PAUSE, TAKE_OVER = ("n", "\n"), ("q", "\x1b"), "v", "?", " ", "t"
AGENT_FPS, FASTEST_FPS = 8.0, 256.0  # Steps per second of an agent
SPEEDS = {"+": 2.0, "=": 2.0, "-": 0.5}
COMMON_KEYS = "v view   ? rules   q quit"
AGENT_KEYS = f"space go/pause   n step   +- speed   t take over   {COMMON_KEYS}"
HAND_KEYS = f"t agent continues   arrows or digits act   n next   {COMMON_KEYS}"
_HELP = f"""Play an environment ({", ".join(environment_names())}), or watch a trained agent and take over from it."""


class Game:
    """One environment, with all actions and scores.

    Args:
        name: short name or id of one of engram's environments.
        agent: observes every step, and chooses actions that the user does not.
    """

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
        """Return the episode fields that the environment reports, as text."""
        values = self.batch.episode_facts(np.array([0]))[0]
        named = zip(self.batch.episode_fields, values, strict=True)
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in named)

    def recording(self) -> dict[str, Any]:
        """The recording of the game."""
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
    """Let the user play according to the arguments until they quit; return the exit code."""
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
    env = agent.config.env
    message = f"{config.run} plays {env}; rl-play shows only engram's environments, rl-eval --gif any"
    refuse(not is_environment(env), message)
    return Game(env, agent.config.env_args | config.env_args, evaluation_seed(config.seed), agent)


class _Session:
    """A connection of the user's keys, the game and the screen."""

    def __init__(self, game: Game, terminal: Terminal, full: bool) -> None:
        self.game, self.terminal, self.full, self.fps = game, terminal, full, AGENT_FPS
        self.by_hand, self.paused = game.agent is None, True
        names = list(game.batch.action_names)
        self.moves = {key: names.index(name) for name, keys in KEYS.items() if name in names for key in keys}
        self.numbered = [action for action, name in enumerate(names) if name not in KEYS]
        self.num_digits, self.typed = len(str(len(names) - 1)), ""

    def run(self) -> None:
        """Play until the user quits."""
        while True:
            self._show()
            key = self.terminal.key(-1 if self.paused else max(round(1000 / self.fps), 1))
            if key in QUIT:
                return
            if key == VIEW:
                self.full = not self.full
            elif key == RULES:
                self._show_rules()
            elif self.game.agent and key == TAKE_OVER:
                self.by_hand, self.paused = not self.by_hand, True
            elif self.game.agent and key in SPEEDS:
                self.fps = min(max(self.fps * SPEEDS[key], 0.5), FASTEST_FPS)
            elif not self.by_hand and key == PAUSE:
                self.paused = not self.paused
            elif not self.by_hand and (key in NEXT or key == ""):
                self.game.act()
                self.paused = self.paused or self.game.over
            elif self.by_hand and self.game.over and key in NEXT:
                self.game.act(0)
            elif self.by_hand and not self.game.over and (action := self._action(key)) is not None:
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
        status = f"step {game.steps}   reward {game.reward:+.6g}   score {game.score:.6g}"
        if game.over:
            status += f"   the end ({facts})" if (facts := game.facts()) else "   the end"
        elif game.agent:
            acting = "the agent waits" if self.paused else f"the agent plays, {self.fps:g} steps/s"
            status += f"   {'you play' if self.by_hand else acting}"
        view = "the whole board" if self.full else "the agent's observation"
        title = f"{game.name}   seed {game.seed}, game {len(game.scores) + (not game.over)}   {view}"
        width, height = self.terminal.console.size
        board = with_legend(game.batch.paint(0, self.full), game.batch.symbols, max(height - 6, 1), width)
        self.terminal.show(title, purpose(type(game.batch)), "", board, "", status, self._keys())

    def _keys(self) -> str:
        if self.game.agent:
            return HAND_KEYS if self.by_hand else AGENT_KEYS
        if self.game.over:
            return f"n next game   {COMMON_KEYS}"
        names = list(self.game.batch.action_names)
        digits = f"digits {self.typed:_<{self.num_digits}} act" if self.num_digits > 1 else f"{' '.join(names)} act"
        stay = "   space stay" if "stay" in names else ""
        return f"{'arrows move' if 'up' in names else digits}{stay}   {COMMON_KEYS}"

    def _show_rules(self) -> None:
        """Show the environment's docstring page by page."""
        console = self.terminal.console
        text = inspect.cleandoc(type(self.game.batch).__doc__ or "").partition("\nArgs:")[0]
        lines = Text(f"{purpose(type(self.game.batch))}\n\n{text}").wrap(console, console.width)
        page = max(console.height - 1, 1)
        for start in range(0, len(lines), page):
            self.terminal.show(*lines[start : start + page], "any key continues")
            self.terminal.key(-1)
