"""The page of results shows every agent of the zoo, as its file says."""

import importlib.util
from pathlib import Path

from PIL import Image

from engram import zoo

DOCS = Path(__file__).parents[2] / "docs"


def test_every_agent_of_the_zoo_is_shown_with_what_its_file_says() -> None:
    """Otherwise: python docs/make_zoo.py."""
    found = importlib.util.spec_from_file_location("make_zoo", DOCS / "make_zoo.py")
    assert found is not None
    assert found.loader is not None
    make_zoo = importlib.util.module_from_spec(found)
    found.loader.exec_module(make_zoo)
    assert make_zoo.text() in (DOCS / "results.md").read_text()
    for name in zoo.names():
        with Image.open(DOCS / "images" / "zoo" / f"{name}.png") as picture:
            assert picture.width == make_zoo.WIDTH * make_zoo.IN_A_ROW
