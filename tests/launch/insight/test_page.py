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
from engram.agents.config import AgentConfig
from engram.agents.inside import Panel, panels
from engram.launch.insight import page
from engram.launch.insight.page import Recording, record, seen_panels

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


def recorded_episode(core: str, env: str = "t-maze", **options: object) -> tuple[Recording, list[Panel]]:
    agent = AgentConfig(core=core, core_args=options)
    args = ENVIRONMENT if env == "t-maze" else {}
    actor = ActorFactory(env=env, env_args=args, agent=agent, num_envs=1, unroll_length=1, seed=0).make_actor(0)
    recording = record(actor)
    return recording, [*seen_panels(recording), *panels(actor.agent.core, recording.trace)]


def written(recording: Recording, shown: list[Panel]) -> str:
    return page.written("t <maze>", "a </script> line", recording, shown)


def test_a_figure_has_the_values_of_every_panel() -> None:
    """Colors span the values but for outliers, and rows are named unless there are too many."""
    rows = np.array([[-2.0, 0.0, 1.0, 2.0]] * 20, np.float32)
    names = [f"row {k}" if k else "" for k in range(20)]
    signed, share = Panel("p", "", "heat", rows, names), Panel("q", "", "heat", rows[:2] / 2, ["a", "b"], "share")
    curves = Panel("r", "A note.", "lines", rows[:2], ["a", "b"])
    first, second, third = page.figure([signed, share, curves]).axes
    np.testing.assert_array_equal(first.images[0].get_array(), rows)
    assert first.images[0].get_clim() == (-2.0, 2.0)
    assert second.images[0].get_clim() == (0.0, 1.0)
    assert [text.get_text() for text in first.get_yticklabels()] == [f"row {k}" for k in range(1, 20, 2)]
    assert third.get_title(loc="left") == "r. A note."
    for line in third.lines:
        np.testing.assert_array_equal(line.get_ydata(), rows[0])
    assert third.get_xlim() == (-0.5, 3.5)


def test_a_page_needs_nothing_from_elsewhere_and_no_text_ends_its_script() -> None:
    text = written(*recorded_episode("gru", "CartPole-v1", hidden_size=4))
    assert "http" not in text
    assert text.count("</script>") == 1
    assert "<title>t &lt;maze&gt;</title>" in text


def painted(look: browser.Browser, name: str, step: int) -> np.ndarray:
    """The image that the page shows at a step, uint8 [height, width, 3]."""
    assert look.run("return step") == step
    url = look.run(f'return document.querySelector("img[alt=\\"{name}\\"]").src')
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))


def test_equal_images_are_stored_once() -> None:
    scenes = [np.random.default_rng(k).integers(0, 256, (20, 30, 3), np.uint8) for k in range(5)]
    recording, shown = recorded_episode("gru", hidden_size=4)
    text = written(recording._replace(boards=scenes * 2, views=scenes[:1]), shown)
    content = json.loads(text.partition("const data = ")[2].partition(";\n")[0])
    keys = content["frames"]["the whole board"]
    assert content["frames"]["the agent's view"] == keys[:1]
    assert keys[:5] == keys[5:] == list(content["files"])
    data = base64.b64decode(content["files"][keys[3]].partition(",")[2])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), scenes[3])


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    torch.manual_seed(2)  # weights with which it leaves the room
    recording, shown = recorded_episode("rmc", num_slots=2, num_heads=2, head_size=4)
    (tmp_path / "page.html").write_text(written(recording, shown))
    last = len(recording.values) - 1
    with browser.browser(tmp_path) as page_in_browser:
        look = page_in_browser
        look.open(tmp_path / "page.html")

        def said(name: str) -> str:
            return look.run(f"return document.getElementById('now-{name}').textContent")

        def check(step: int) -> None:
            assert said("step") == f"{step} of {last}"
            assert float(said("value")) == pytest.approx(float(recording.values[step]), rel=1e-4)
            assert said("goal") == recording.facts["goal"][step]
            if step < last:
                assert said("action") == recording.options[recording.actions[step, 0]]
            for name, images in (("the whole board", recording.boards), ("the agent's view", recording.views)):
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
        place = look.run("return parseFloat(document.getElementById('cursor').style.left)")
        axis = look.run("return data.axis")
        assert place == pytest.approx(100 * (axis[0] + (axis[1] - axis[0]) * (last + 0.5) / (last + 1)), abs=0.01)
        look.run("""const box = $("plot").getBoundingClientRect(), x = left + (right - left) * 6.5 / data.steps;
                    const at = { buttons: 1, clientX: box.left + x * box.width };
                    $("plot").dispatchEvent(new PointerEvent("pointerdown", at))""")
        check(6)
        look.run("document.getElementById('play').click()")
        look.run("return new Promise(done => setInterval(() => { if (step === data.steps - 1) done(1) }, 20))")
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


@pytest.mark.parametrize("core", SMALL)
def test_the_figures_of_all_cores_have_all_their_panels(core: str) -> None:
    _, shown = recorded_episode(core, **SMALL[core])
    for axis, panel in zip(page.figure(shown).axes, shown, strict=True):
        assert axis.get_title(loc="left").startswith(panel.title)
        drawn = axis.images[0].get_array() if panel.kind == "heat" else [line.get_ydata() for line in axis.lines]
        np.testing.assert_array_equal(drawn, panel.values)


def test_an_environment_without_pictures_shows_its_numbers() -> None:
    recording, shown = recorded_episode("gru", "secretive:Secretive", hidden_size=4)
    assert recording.boards == []
    panel = next(panel for panel in shown if panel.title == "observation")
    np.testing.assert_array_equal(panel.values, recording.observations["observation"].T)
    assert not json.loads(written(recording, shown).partition("const data = ")[2].partition(";\n")[0])["frames"]


def test_actions_that_are_numbers_have_no_probabilities() -> None:
    recording, shown = recorded_episode("gru", "Pendulum-v1", hidden_size=4)
    assert recording.actions.dtype == np.float32
    assert shown[0].scale == "signed"
    assert recording.options == ["mean 1", "log deviation 1"]
    assert page.table(recording)["action"][0] == f"{recording.actions[0, 0]:.5g}"
