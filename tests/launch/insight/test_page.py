"""The page in a real browser: what it says at a step is what was recorded, however one gets to that step."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import browser
from engram.actors.factory import ActorFactory
from engram.agents.agent import AgentConfig
from engram.agents.inside import Panel, panels
from engram.launch.insight import page
from engram.launch.insight.page import seen_panels
from engram.launch.insight.recording import Recording, marks, record

ENVIRONMENT = {"difficulty": 0, "half_width": 4, "limbo_time": 6, "teleport_delay": 2, "timeout_frames": 20}
RIGHT, LEFT, END = "\ue014", "\ue012", "\ue010"
SMALL: dict[str, dict[str, int]] = {
    "rmc": {"num_slots": 2, "num_heads": 2, "head_size": 4},
    "fwm": {"hidden_size": 8, "memory_size": 4},
    "mnm-g": {"hidden_size": 8, "memory_size": 4, "num_heads": 1},
    "mnm-p": {"hidden_size": 8, "memory_size": 4, "num_heads": 1},
    "concrete": {"pool_size": 6, "num_pools": 4},
    "parallel": {"pool_size": 6, "num_pools": 4},
    "lstm": {"hidden_size": 40},
    "conv-lstm": {"hidden_channels": 2, "height": 1, "width": 2},
    "gtrxl": {"hidden_size": 8, "num_heads": 2, "head_size": 4, "mlp_size": 8, "memory_length": 6},
    "lru": {"hidden_size": 8, "state_size": 6},
    "min-gru": {"hidden_size": 8},
    "ffm": {"hidden_size": 8, "memory_size": 4, "context_size": 2},
    "feedforward": {"hidden_size": 8},
}
NUMBERS = ".map(element => +element.textContent)"


def recorded_episode(core: str, env: str = "t-maze", **options: object) -> tuple[Recording, list[Panel], list[str]]:
    agent = AgentConfig(core=core, core_args=options)
    args = ENVIRONMENT if env == "t-maze" else {}
    actor = ActorFactory(env=env, env_args=args, agent=agent, num_envs=1, unroll_length=1, seed=0).make_actor(0)
    recording = record(actor)
    names = list(getattr(actor.batch, "action_names", ())) or ["0", "1"]
    return recording, [*seen_panels(recording, names), *panels(actor.agent.core, recording.trace)], names


def written(recording: Recording, shown: list[Panel], names: list[str]) -> str:
    values = {"goal": ("left", "right"), "place": ("room", "limbo", "maze"), "cue": ("hidden", "shown"), "reached": ()}
    episode = page.episode(recording, shown, marks(recording, values), values)
    return page.written("t <maze>", "a </script> line", names, episode)


def test_values_are_packed_between_the_ends_of_the_scale() -> None:
    panel = Panel("p", "", "heat", np.array([[-2.0, 0.0, 1.0, 2.0]], np.float32), ("x",), "signed")
    packed = page.packed(panel)
    assert (packed["low"], packed["high"]) == (-2.0, 2.0)
    assert json.dumps(packed["values"])


def test_a_page_needs_nothing_from_elsewhere_and_no_text_ends_its_script() -> None:
    text = written(*recorded_episode("gru", "CartPole-v1", hidden_size=4))
    assert "http" not in text
    assert text.count("</script>") == 1
    assert "<title>t &lt;maze&gt;</title>" in text


def painted(look: browser.Browser, name: str, step: int) -> np.ndarray:
    """The image that the page shows at a step, uint8 [height, width, 3]."""
    assert look.run("return step") == step
    url = look.run(f"return document.querySelector('.{name} img').src")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))


def test_equal_images_are_stored_once() -> None:
    scenes = [np.random.default_rng(k).integers(0, 256, (20, 30, 3), np.uint8) for k in range(5)]
    images = page.Images()
    assert images.indices(scenes * 2) == [0, 1, 2, 3, 4] * 2
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(images.files[3]))), scenes[3])


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    torch.manual_seed(2)  # weights with which it leaves the room
    recording, shown, names = recorded_episode("rmc", num_slots=2, num_heads=2, head_size=4)
    (tmp_path / "page.html").write_text(written(recording, shown, names))
    last = len(recording.values) - 1
    with browser.browser(tmp_path) as page_in_browser:
        look = page_in_browser
        look.open(tmp_path / "page.html")

        def said(name: str) -> str:
            return look.run(f"return document.getElementById('now-{name}').textContent")

        def check(step: int) -> None:
            assert said("step") == f"{step} of {last}"
            assert float(said("value")) == pytest.approx(float(recording.values[step]), rel=6e-3, abs=1e-3)
            assert said("goal") == ("left", "right")[recording.facts["goal"][step]]
            if step < last:
                assert said("action") == names[recording.actions[step, 0]]
            shares = look.run(
                "return [...document.querySelectorAll('#policy .bar span:last-child')].map(x => +x.textContent)"
            )
            np.testing.assert_allclose(shares, recording.probabilities[step], atol=0.011)
            for name, images in (("board", recording.boards), ("view", recording.views)):
                np.testing.assert_array_equal(painted(look, name, step), images[step])

        check(0)
        look.run("const s = document.getElementById('step'); s.value = 9; s.dispatchEvent(new Event('input'))")
        check(9)
        look.press(RIGHT)
        check(10)
        look.press(LEFT + LEFT)
        check(8)
        look.press(END)
        check(last)
        place = look.run("const c = document.querySelector('.cursor'); return parseFloat(c.style.left)")
        assert place == pytest.approx(100 * (last + 0.5) / (last + 1), abs=0.01)
        look.run("document.querySelector('#marks button').click()")
        check(marks(recording, {"place": ("room", "limbo", "maze")})[0].step)
        look.run("document.getElementById('play').click()")
        look.run("return new Promise(done => setInterval(() => { if (step === episode.steps - 1) done(1) }, 20))")
        check(last)
        assert look.run("return document.getElementById('play').textContent") == "Play"
        assert look.run("return document.documentElement.scrollWidth <= window.innerWidth")
        look.resize(390, 844)
        assert look.run("return window.innerWidth") == 390
        assert look.run("return document.documentElement.scrollWidth") <= 390
        look.run("const s = document.getElementById('step'); s.value = 4; s.dispatchEvent(new Event('input'))")
        check(4)
        look.press(" ")
        assert look.run("return document.getElementById('play').textContent") == "Pause"
        look.press(" ")
        assert look.run("return document.getElementById('play').textContent") == "Play"
        assert look.problems() == []


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_pages_of_all_cores_show_all_their_panels(tmp_path: Path) -> None:
    """Heat maps are drawn, curves have values, nothing is logged as an error and nothing is wider than a phone."""
    with browser.browser(tmp_path) as look:
        for core, options in SMALL.items():
            recording, shown, names = recorded_episode(core, **options)
            (tmp_path / f"{core}.html").write_text(written(recording, shown, names))
            look.open(tmp_path / f"{core}.html")
            titles = look.run("return [...document.querySelectorAll('.panel h2')].map(x => x.textContent)")
            assert titles == [panel.title for panel in shown], core
            for width in (1500, 390):
                look.resize(width, 1000)
                assert look.run("return document.documentElement.scrollWidth") <= width, core
            look.run("show(7)")
            said = look.run(f"return [...document.querySelectorAll('.legend b')]{NUMBERS}")
            curves = np.concatenate([panel.values[:, 7] for panel in shown if panel.kind == "lines"])
            np.testing.assert_allclose(said, curves, rtol=6e-3, atol=6e-4, err_msg=core)
            assert look.problems() == [], core


def test_an_environment_without_pictures_shows_its_numbers() -> None:
    recording, shown, names = recorded_episode("gru", "secretive:Secretive", hidden_size=4)
    assert recording.boards == []
    panel = next(panel for panel in shown if panel.title == "observation")
    np.testing.assert_array_equal(panel.values, recording.observations["observation"].T)
    assert "observation" in written(recording, shown, names)


def test_actions_that_are_numbers_have_no_probabilities() -> None:
    recording, shown, _ = recorded_episode("gru", "Pendulum-v1", hidden_size=4)
    assert recording.actions.dtype == np.float32
    assert shown[0].scale == "signed"
    assert '"actions":[[' in written(recording, shown, ["mean 1", "log deviation 1"])
