"""docs/reference/environments.md says of every environment what the code says."""

import re
from pathlib import Path

import pytest
from PIL import Image

from engram.envs.registration import ENVIRONMENTS, environment_parameters, make_batch

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "environments.md").read_text()

POPGYM = [name for name in ENVIRONMENTS if name.startswith("popgym-")]
"""They have one section and one picture."""

every_environment = pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name not in POPGYM])


def section(name: str) -> str:
    """The part of the page that shows the environment's picture."""
    return next(part for part in PAGE.split("\n## ") if f"(../images/{name}.png)" in part)


@every_environment
def test_parameters_and_defaults(name):
    stated = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section(name), re.MULTILINE))
    given = environment_parameters(ENVIRONMENTS[name])
    assert list(stated) == list(given)
    for key, parameter in given.items():
        default = f'"{parameter.default}"' if isinstance(parameter.default, str) else str(parameter.default)
        assert stated[key] == default, key


@every_environment
def test_spaces_and_facts(name):
    text, batch, twin = section(name), make_batch(name, 1), make_batch(f"{name}-twin", 1)
    for each in (batch, twin):
        shape = str(list(each.single_observation_space.shape))
        assert f"`{shape}`" in text
    assert f"{batch.single_observation_space.dtype} `" in text
    numbered = ", ".join(f"{k} {action}" for k, action in enumerate(batch.action_names))
    assert numbered in text or ", ".join(batch.action_names) in text
    for field in batch.episode_fields:
        assert f"`{field}`" in text
    batch.reset(seed=0)
    for key in batch.level(0):
        assert f'"{key}"' in text


@pytest.mark.parametrize("name", POPGYM)
def test_the_table_of_popgym(name):
    """The sizes of observations and the numbers of actions of all difficulties."""
    text = next(part for part in PAGE.split("\n## ") if part.startswith("POPGym"))
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    batches = [make_batch(name, 1, difficulty=each) for each in ("easy", "medium", "hard")]
    sizes, actions = ([], [])
    for batch in batches:
        sizes.append(f"{batch.single_observation_space.shape[0]}")
        actions.append(f"{batch.single_action_space.n}")
    for values in (sizes, actions):
        assert f"| {values[0] if len(set(values)) == 1 else ', '.join(values)} |" in row
    batches[0].reset(seed=0)
    for key in batches[0].level(0):
        assert f"`{key}`" in row
    (parameter,) = environment_parameters(ENVIRONMENTS[name]).values()
    assert f'| `difficulty` | "{parameter.default}" |' in text


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_table_of_environments(name):
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| [`{name}`](#")]
    assert len(rows) == 1
    anchor = re.search(r"\(#([\w-]+)\)", rows[0])
    assert anchor is not None
    headings = [heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)]
    assert anchor[1] in headings
    assert f"`{ENVIRONMENTS[name].id}`" in rows[0]


@every_environment
def test_pictures_are_there(name):
    with Image.open(DOCS / "images" / f"{name}.png") as image:
        assert min(image.size) >= 200
