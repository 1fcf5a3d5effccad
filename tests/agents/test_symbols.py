"""Bytes of small images stand for symbols: what a table says of each is appended to the image."""

import pytest
import torch

from engram.agents.specs import ArraySpec
from engram.agents.torsos import MOST_CELLS, ConvTorso, Symbols, TorsoConfig, make_torso

BYTES = 1 / 255
CONFIG = TorsoConfig(symbol_size=5)


def test_a_cell_has_the_sum_of_its_channels_rows() -> None:
    symbols = Symbols(3, 4)
    cells = torch.randint(256, (2, 6, 7, 3), dtype=torch.uint8)
    found = symbols(cells)
    assert found.shape == (2, 6, 7, 4)
    expected = sum(symbols.tables[256 * channel + int(cells[1, 2, 5, channel])] for channel in range(3))
    torch.testing.assert_close(found[1, 2, 5], expected)


def test_only_symbols_that_were_seen_are_learnt() -> None:
    symbols = Symbols(2, 3)
    symbols(torch.tensor([[[[5, 250]]]], dtype=torch.uint8)).sum().backward()
    assert symbols.tables.grad is not None
    assert symbols.tables.grad.sum(1).nonzero().flatten().tolist() == [5, 256 + 250]


def test_the_layout_of_the_channels_does_not_matter() -> None:
    torch.manual_seed(0)
    last = make_torso(ArraySpec((7, 9, 3), BYTES), CONFIG)
    first = make_torso(ArraySpec((3, 7, 9), BYTES), TorsoConfig(symbol_size=5, image_layout="channels-first"))
    first.load_state_dict(last.state_dict())
    cells = torch.randint(11, (4, 7, 9, 3), dtype=torch.uint8)
    torch.testing.assert_close(first(cells.permute(0, 3, 1, 2)), last(cells))


def test_neighbouring_numbers_are_told_apart_as_well_as_distant_ones() -> None:
    """As quantities, 5 and 6 of 255 are nearly the same."""
    torch.manual_seed(0)
    cells = torch.zeros(3, 7, 7, 1, dtype=torch.uint8)
    cells[:, 3, 3, 0] = torch.tensor([5, 6, 250], dtype=torch.uint8)

    def near_over_far(size: int) -> float:
        features = make_torso(ArraySpec((7, 7, 1), BYTES), TorsoConfig(symbol_size=size))(cells).detach()
        return float((features[0] - features[1]).norm() / (features[0] - features[2]).norm())

    assert near_over_far(0) < 0.02
    assert near_over_far(16) > 0.3


@pytest.mark.parametrize(
    ("shape", "scale"),
    [((MOST_CELLS + 1, 4, 3), BYTES), ((4, MOST_CELLS + 1, 3), BYTES), ((7, 7, 3), 1.0)],
    ids=["rows", "columns", "numbers"],
)
def test_pictures_and_numbers_hold_no_symbols(shape: tuple[int, ...], scale: float) -> None:
    torso = make_torso(ArraySpec(shape, scale), CONFIG)
    assert isinstance(torso, ConvTorso)
    assert torso.symbols is None


def test_a_size_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="symbol_size is -1"):
        TorsoConfig(symbol_size=-1)
