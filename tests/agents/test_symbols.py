"""Bytes of small images stand for symbols: what a table says of each is appended to the image."""

import pytest
import torch

from engram.agents.config import TorsoConfig
from engram.agents.grid_torso import MOST_CELLS, ConvTorso
from engram.agents.images import Symbols
from engram.agents.normalization import Shares
from engram.agents.specs import ArraySpec
from engram.agents.torsos import make_torso

BYTES = 1 / 255
CONFIG = TorsoConfig(symbol_size=5)


def test_a_cell_has_the_sum_of_its_channels_rows() -> None:
    symbols = Symbols(3, 4)
    cells = torch.randint(256, (2, 6, 7, 3), dtype=torch.uint8)
    found = symbols(cells)
    assert found.shape == (2, 6, 7, 4)
    expected = sum(symbols.tables[256 * channel + int(cells[1, 2, 5, channel])] for channel in range(3))
    torch.testing.assert_close(found[1, 2, 5], expected)


def test_only_symbols_that_were_seen_are_learned() -> None:
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


def test_neighboring_numbers_are_told_apart_as_well_as_distant_ones() -> None:
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


def seldom(share: float, count: int = 4000) -> torch.Tensor:
    """Images of one cell: symbol 7 in so large a share of them, else 2."""
    cells = torch.full((count, 1, 1, 1), 2, dtype=torch.uint8)
    cells[: round(share * count)] = 7
    return cells


def test_balanced_symbols_make_up_the_same_variance() -> None:
    symbols = Symbols(1, 1, balanced=True)
    with torch.no_grad():
        symbols.tables.fill_(1.0)
    cells = seldom(0.04)
    assert (symbols(cells) == 1).all(), "nothing is scaled before it was counted"
    symbols.observe(cells)
    found = symbols(cells).flatten()
    torch.testing.assert_close(found.square().mean(), torch.tensor(1.0))
    torch.testing.assert_close(found[0] / found[-1], torch.tensor((0.96 / 0.04) ** 0.5))


def test_symbols_rarer_than_the_floor_count_as_equally_rare() -> None:
    shares = Shares(3, memory=1e6, floor=0.01)
    shares.update(torch.tensor([0] * 9950 + [1] * 50), 10_000, 1.0)
    factors = shares.factors(1)
    torch.testing.assert_close(factors[1], factors[2])
    torch.testing.assert_close(factors[1] / factors[0], torch.tensor((0.995 / 0.01) ** 0.5))


@pytest.mark.integration
def test_shares_of_more_cells_than_a_float_counts() -> None:
    shares = Shares(2, memory=1e6, floor=0.01)
    most = 2**24
    shares.update(torch.zeros(most + 1_000_000, dtype=torch.int64), most + 1_000_000, 1.0)
    assert shares.share[0].item() == 1


def test_shares_of_parts_are_those_of_the_whole() -> None:
    cells = torch.randint(5, (300,))
    whole, parts = Shares(5, memory=1e6, floor=0.01), Shares(5, memory=1e6, floor=0.01)
    whole.update(cells, 300, 300.0)
    for part in cells.split(70):
        parts.update(part, len(part), float(len(part)))
    torch.testing.assert_close(parts.share, whole.share)
    torch.testing.assert_close(whole.share, torch.bincount(cells, minlength=5) / 300)


def test_shares_travel_with_the_weights_of_a_torso_that_balances() -> None:
    config = TorsoConfig(symbol_size=5, balance_symbols=True)
    torch.manual_seed(0)
    learned, loaded = (make_torso(ArraySpec((7, 9, 3), BYTES), config) for _ in range(2))
    cells = torch.randint(3, (50, 7, 9, 3), dtype=torch.uint8)
    before = learned(cells)
    learned.observe(cells)  # pyright: ignore
    assert not torch.equal(learned(cells), before)
    loaded.load_state_dict(learned.state_dict())
    assert torch.equal(loaded(cells), learned(cells))
