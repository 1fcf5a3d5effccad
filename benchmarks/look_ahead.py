"""Number of examples that look-ahead in BoxWorld takes: which of two boxes that one key opens leads to the gem?

    python benchmarks/look_ahead.py [--examples 60000]

Supervised learning with the whole board visible, two locks and one distractor in an 8 x 8 room: the correct box
contains the key to the gem's box, the other a key that opens nothing. Colors and positions are new in every level, so
a network has to compare two colors wherever they are. It scores every cell, and the content of the correct box should
score higher. Three networks: two layers over the flattened board, as agents have, and two blocks of attention over its
cells (Zambaldi et al. 2018, "Relational deep reinforcement learning"), both after the two convolutions of `--preset
curriculum`; and the same attention after one convolution of 64 kernels. Writes the fraction of correct answers on new
levels to results/look-ahead.json.
"""

import argparse
import json
import time
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.actors.factory import observation_spec
from engram.agents.config import TorsoConfig
from engram.agents.grid_torso import ConvTorso
from engram.envs.boxworld import BoxWorldBatch
from engram.envs.boxworld.rules import BAIT, LOCK
from engram.launch.metrics.provenance import provenance

LEVELS, BATCH, ROW = 8192, 256, 5_000
TWO = TorsoConfig(conv_channels=(32, 32), symbol_size=16, normalize_observations=True)
ONE = TorsoConfig(conv_channels=(64,), symbol_size=32, normalize_observations=True)


class Flattened(nn.Module):
    """Two hidden layers of 256 over all cells at once."""

    def __init__(self, torso: ConvTorso) -> None:
        super().__init__()
        self.torso = torso
        sizes = (torso.output_size, 256, 256)
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(256, torso.image[1] * torso.image[2]))

    def forward(self, board: Tensor) -> Tensor:
        """[N, rows, cols, 3] -> a score per cell [N, rows * cols]."""
        return self.layers(self.torso(board))


class Attention(nn.Module):
    """Two blocks of attention over cells of 64 features, four heads."""

    def __init__(self, torso: ConvTorso) -> None:
        super().__init__()
        self.torso, self.cell = torso, nn.Linear(torso.image[0], 64)
        block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.score = nn.Linear(64, 1)

    def forward(self, board: Tensor) -> Tensor:
        """[N, rows, cols, 3] -> a score per cell [N, rows * cols]."""
        cells = self.torso(board).unflatten(1, (self.torso.image[0], -1)).transpose(1, 2)
        return self.score(self.blocks(self.cell(cells))).squeeze(2)


def examples(environment: BoxWorldBatch) -> Generator[tuple[Tensor, Tensor]]:
    """Yield boards [BATCH, rows, cols, 3] and the cells [BATCH, 2] of the contents of the correct and the other box."""
    seed = 0
    while True:
        boards, _ = environment.reset(seed=seed)
        rim = (environment.state.board.shape[1] - boards.shape[1]) // 2
        cells = environment.state.board[:, rim:-rim, rim:-rim].reshape(LEVELS, -1)
        first = environment.state.colors[:, :1].astype(np.int64)
        distractor = cells == BAIT + first
        pairs = np.stack([(cells == LOCK + first).argmax(1), distractor.argmax(1)], 1) - 1  # left of its lock
        chosen = np.flatnonzero(distractor.any(1))  # the other levels have theirs at the gem's box
        for start in range(0, len(chosen) - BATCH + 1, BATCH):
            rows = chosen[start : start + BATCH]
            yield torch.from_numpy(boards[rows]), torch.from_numpy(pairs[rows])
        seed += 1


def learn(
    name: str, kind: type[Flattened | Attention], config: TorsoConfig, lr: float, count: int
) -> dict[str, object]:
    """Train a new network on `count` examples, each seen once."""
    torch.manual_seed(1)
    environment = BoxWorldBatch(LEVELS, path_lengths=2, num_distractors=1, grid_size=8, view="full")
    torso = ConvTorso(observation_spec(environment.single_observation_space), config)  # pyright: ignore
    network = kind(torso)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    learned, right, since, rows = 0, 0, 0, list[dict[str, float]]()
    start = time.perf_counter()
    for boards, pairs in examples(environment):
        torso.observe(boards)
        good, bad = network(boards).gather(1, pairs).unbind(1)
        right, since = right + int((good > bad).sum()), since + BATCH
        optimizer.zero_grad()
        functional.softplus(bad - good).mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        learned += BATCH
        if since >= ROW:
            rows.append({"examples": learned, "right": round(right / since, 4)})
            print(name, rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
            right = since = 0
        if learned >= count:
            break
    environment.close()
    return {"lr": lr, "parameters": sum(p.numel() for p in network.parameters()), "rows": rows}


def main() -> None:
    """Train the three networks and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=60_000)
    count = parser.parse_args().examples
    torch.set_num_threads(1)
    results = {
        name: learn(name, kind, config, lr, count)
        for name, kind, config, lr in (
            ("flattened", Flattened, TWO, 1e-3),
            ("attention", Attention, TWO, 2e-3),
            ("attention-one-convolution", Attention, ONE, 2e-3),
        )
    }
    file = Path(__file__).parent / "results" / "look-ahead.json"
    file.write_text(json.dumps(provenance() | {"seed": 1} | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
