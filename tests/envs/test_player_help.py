"""Every world explains itself to a person who plays it, in the room that a terminal of 80x24 has."""

import pytest

from engram.envs.player_help import HELP_LINES, LEGEND_WIDTH, WIDTH
from engram.envs.registration import make_batch, world_names


@pytest.mark.parametrize("name", world_names())
def test_the_help_is_there_and_fits(name: str) -> None:
    found = make_batch(name, 1).player_help()
    legend = [*(text for _, text in found.symbols), *found.rewards]
    assert len(found.goal) == 2
    assert found.rules
    assert found.symbols
    assert found.rewards
    assert max(map(len, (*found.goal, *found.rules))) <= WIDTH
    assert max(map(len, legend)) <= LEGEND_WIDTH
    assert len(found.goal) + len(found.rules) + len(legend) <= HELP_LINES
    assert all(text.strip() for text in (*found.goal, *found.rules, *legend))


@pytest.mark.parametrize(
    ("parameters", "event"),
    [({"task": "avoid"}, "-10 eating a ghost"), ({"task": "regular"}, "+5 eating a ghost")],
)
def test_rewards_are_those_of_the_parameters(parameters: dict[str, str], event: str) -> None:
    assert event in make_batch("mini-pacman", 1, 0, **parameters).player_help().rewards
