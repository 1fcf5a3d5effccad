"""Update the zoo in docs/results.md: an image and the evaluation of each agent.

python docs/make_zoo.py [NAME ...]      draw these agents, all without a name; the text covers all
"""

import sys
from dataclasses import replace
from pathlib import Path

from PIL import Image

sys.path.append(str(Path(__file__).parent / "site"))
import layouts
from figures_page import replace_part

from engram import zoo
from engram.launch.config.command_line import parse
from engram.launch.config.plain import from_dict
from engram.launch.config.run_config import RunConfig
from engram.launch.evaluate.command import EvaluationConfig, acting
from engram.launch.evaluate.episodes import film
from engram.launch.runs.trained import open_run

PAGE, IMAGES = Path(__file__).parent / "results.md", Path(__file__).parent / "images" / "zoo"
MOMENTS, IN_A_ROW, WIDTH, COLORS = 6, 3, 380, 64
"""Images per agent, images per row, width in pixels, colors."""
INTRODUCTION = (
    "## Pretrained agents",
    "",
    "Each image shows the first evaluation episode with seed 0 at six moments: the observation and the whole board.",
    "`rl-eval zoo:NAME` evaluates an agent (with `--gif FILE` as a GIF), `rl-look zoo:NAME` shows its recurrent",
    "state, and `rl-train --start-from zoo:NAME` continues training.",
)


def draw(name: str) -> Image.Image:
    """Images of an agent at evenly spaced moments of one episode."""
    noted = zoo.facts(name)["evaluation"]["env_args"]
    words = [f"{zoo.PREFIX}{name}", *(["--env-args", *noted] if noted else [])]
    config = parse(EvaluationConfig, words, "rl-eval", "")
    trained, _, trainees, _ = open_run(config.run, config.checkpoint)
    factory = replace(trained.factory(), env_args=trained.env_args | config.env_args)
    frames = [frame for frame, _ in film(acting(factory, trainees[0].weights, config, num_envs=1, unroll_length=1), 1)]
    chosen = [frames[round(i * (len(frames) - 1) / (MOMENTS - 1))].convert("RGB") for i in range(MOMENTS)]
    size = (WIDTH, round(WIDTH * chosen[0].height / chosen[0].width))
    strip = Image.new("RGB", (size[0] * IN_A_ROW, size[1] * (MOMENTS // IN_A_ROW)))
    for i, frame in enumerate(chosen):
        strip.paste(frame.resize(size, Image.Resampling.LANCZOS), (size[0] * (i % IN_A_ROW), size[1] * (i // IN_A_ROW)))
    return strip.quantize(COLORS, dither=Image.Dither.NONE)


def text() -> str:
    """The part of the page."""
    return "\n".join([*INTRODUCTION, *(line for name in zoo.names() for line in _agent(name))])


def _agent(name: str) -> list[str]:
    facts = zoo.facts(name)
    found, origin = facts["evaluation"], facts["provenance"]
    mean, low, high = (found["return"][key] for key in ("mean", "low", "high"))
    solved = f", {found['solved']['mean']:.1%} solved" if "solved" in found else ""
    environment = zoo.environment(facts)
    begun = {"begun": origin.get("begun")}
    mark = layouts.MARK if layouts.affected(from_dict(RunConfig, zoo.load(name).config), begun) else ""
    training = facts.get("evaluation_on_training_graphs")
    solved += (
        f" ({training['mean']:.3g} [{training['low']:.3g}, {training['high']:.3g}] on training graphs)"
        if training
        else ""
    )
    return [
        "",
        f"### zoo:{name}",
        "",
        f"![zoo:{name} at play](images/zoo/{name}.png)",
        "",
        f"`{environment}`, core `{facts['core']}`{mark}: return {mean:.3g} [{low:.3g}, {high:.3g}]{solved} in "
        f"{found['episodes']:,} episodes, after {origin['steps'] / 1e6:,.1f} M steps "
        f"(seed {origin['seed']}, commit {origin['commit'][:7]}).",
    ]


def main(words: list[str]) -> None:
    """Draw the images and write the text."""
    IMAGES.mkdir(exist_ok=True)
    for name in words or zoo.names():
        draw(name).save(IMAGES / f"{name}.png", optimize=True)
    replace_part(PAGE, "<!-- zoo -->", text(), "<!-- end zoo -->")


if __name__ == "__main__":
    main(sys.argv[1:])
