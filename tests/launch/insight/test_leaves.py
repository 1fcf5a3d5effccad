"""Every leaf of a Dict observation of a Gymnasium environment is on the page, also where the environment renders."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import browser
from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig
from engram.launch.insight import page
from engram.launch.insight.page import Recording, images, is_image, record, seen_panels, table


@pytest.fixture(scope="module", params=[None, "rgb_array"])
def played(request: pytest.FixtureRequest) -> tuple[Any, Recording]:
    agent = AgentConfig(core="gru", core_args={"hidden_size": 4})
    args = {"render_mode": request.param} if request.param else {}
    factory = ActorFactory(
        env="many_leaves:ManyLeaves", env_args=args, agent=agent, num_envs=1, unroll_length=1, seed=0
    )
    actor = factory.make_actor(0)
    return actor, record(actor)


def test_images_vectors_and_scalars_of_every_step(played: tuple[Any, Recording]) -> None:
    actor, recording = played
    panels = {panel.title: panel for panel in seen_panels(recording)}
    np.testing.assert_allclose(panels["observation: body.joints"].values, np.tile(np.arange(7) / 6, (4, 1)), atol=1e-6)
    assert panels["observation: room"].values.sum(0).tolist() == [1] * 7
    assert table(recording)["body.height"] == ["-2.5", "-1.5", "-0.5", "0.5", "1.5", "2.5", "3.5"]
    seen = {name: images(array)[2] for name, array in recording.observations.items() if is_image(array)}
    assert list(seen) == ["camera", "symbols"]
    camera, symbols = seen.values()
    assert camera.shape == (160, 192, 3)
    assert camera[0, 0].tolist() == [255, 100, 2]
    assert camera[0, 8 * 7].tolist() == [0, 0, 0]
    side = symbols.shape[1] // 14
    assert symbols[2 * side, [0, 7 * side]].tolist() == [[128] * 3, [255] * 3]
    assert len(recording.boards) == (7 if actor.batch.vector.envs[0].render_mode else 0)


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "as_shown"),
    [
        ((20, 24), lambda x: x[..., None]),
        ((20, 24, 3), lambda x: x),
        ((3, 20, 24), lambda x: np.moveaxis(x, 0, -1)),
        ((1, 20, 20), lambda x: np.moveaxis(x, 0, -1)),
        ((20, 24, 5), lambda x: np.concatenate(list(np.moveaxis(x, -1, 0)), axis=1)[..., None]),
        ((4, 20, 24, 3), lambda x: np.concatenate(list(x), axis=1)),
    ],
)
def test_layouts_of_images(shape: tuple[int, ...], as_shown: Callable[[np.ndarray], np.ndarray]) -> None:
    array = RANDOM.integers(0, 256, (2, *shape), np.uint8)
    first = images(array)[0][::8, ::8]
    np.testing.assert_array_equal(first, np.broadcast_to(as_shown(array[0]), first.shape))


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_page_shows_them_at_the_present_step(played: tuple[Any, Recording], tmp_path: Path) -> None:
    _, recording = played
    (tmp_path / "page.html").write_text(page.written("t", "", recording, seen_panels(recording)))
    with browser.browser(tmp_path) as look:
        look.open(tmp_path / "page.html")
        look.run("show(4)")
        assert look.run("return document.getElementById('now-body.height').textContent") == "1.5"
        names = look.run("return [...document.querySelectorAll('figcaption')].map(x => x.textContent)")
        assert [name for name in names if name != "the whole board"] == ["camera", "symbols"]
        url = look.run("return document.querySelector('img[alt=camera]').src")
        picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
        assert picture.getpixel((96, 0)) == (255, 100, 4)
        assert look.problems() == []
