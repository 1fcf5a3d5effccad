"""How many examples the look ahead of BoxWorld takes: which of two boxes that one key opens leads on to the gem?

    python benchmarks/look_ahead.py [--examples 220000]

Supervised, the whole board in sight, two locks and one distractor in a room of 8 x 8: the right box holds the key of
the gem's box, the other one a key that opens nothing. Colours and places are new in every level, so that two colours
have to be compared wherever they are. The convolutions are those of `--preset curriculum`; what follows them is two
layers over the flattened board, as agents have it, or two blocks of attention over its cells (Zambaldi et al. 2018,
"Relational deep reinforcement learning"). Writes the share of right answers on levels that were not seen before into
results/look-ahead.json.
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
from engram.agents.torsos import ConvTorso, TorsoConfig
from engram.envs.boxworld.env import BoxWorldBatch
from engram.envs.boxworld.levels import BAIT, LOCK
from engram.launch.metrics.provenance import provenance

LEVELS, BATCH, ROW = 8192, 256, 20_000
TORSO = TorsoConfig(conv_channels=(32, 32), symbol_size=16, normalise_observations=True)


class Flattened(nn.Module):
    """Two hidden layers of 256 over all cells at once."""

    def __init__(self, torso: ConvTorso) -> None:
        super().__init__()
        self.torso = torso
        sizes = (torso.output_size, 256, 256)
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(256, 2))

    def forward(self, board: Tensor) -> Tensor:
        """[N, rows, cols, 3] -> logits [N, 2]."""
        return self.layers(self.torso(board))


class Attention(nn.Module):
    """Two blocks of attention over cells of 64 numbers, four heads, and the maximum over all cells."""

    def __init__(self, torso: ConvTorso) -> None:
        super().__init__()
        self.torso, self.cell = torso, nn.Linear(torso.image[0], 64)
        block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.choice = nn.Linear(64, 2)

    def forward(self, board: Tensor) -> Tensor:
        """[N, rows, cols, 3] -> logits [N, 2]."""
        cells = self.torso(board).unflatten(1, (self.torso.image[0], -1)).transpose(1, 2)
        return self.choice(self.blocks(self.cell(cells)).amax(1))


def examples(world: BoxWorldBatch) -> Generator[tuple[Tensor, Tensor]]:
    """Boards [BATCH, rows, cols, 3] and which of the first key's two boxes is right, in reading order."""
    seed = 0
    while True:
        boards, _ = world.reset(seed=seed)
        cells = world.state.board.reshape(LEVELS, -1)
        first = world.state.colours[:, :1].astype(np.int64)
        distractor = cells == BAIT + first
        right = (cells == LOCK + first).argmax(1) > distractor.argmax(1)
        chosen = np.flatnonzero(distractor.any(1))  # the other levels have theirs at the gem's box
        for start in range(0, len(chosen) - BATCH + 1, BATCH):
            rows = chosen[start : start + BATCH]
            yield torch.from_numpy(boards[rows]), torch.from_numpy(right[rows].astype(np.int64))
        seed += 1


def learn(kind: type[Flattened | Attention], lr: float, count: int) -> dict[str, object]:
    """Train a new network on `count` examples, each seen once."""
    torch.manual_seed(1)
    world = BoxWorldBatch(LEVELS, path_lengths=2, num_distractors=1, grid_size=8, view="full")
    torso = ConvTorso(observation_spec(world.single_observation_space), TORSO)  # pyright: ignore
    network = kind(torso)
    optimiser = torch.optim.Adam(network.parameters(), lr)
    seen, right, since, rows = 0, 0, 0, list[dict[str, float]]()
    start = time.perf_counter()
    for boards, answers in examples(world):
        torso.observe(boards)
        logits = network(boards)
        right, since = right + int((logits.argmax(1) == answers).sum()), since + BATCH
        optimiser.zero_grad()
        functional.cross_entropy(logits, answers).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        seen += BATCH
        if since >= ROW:
            rows.append({"examples": seen, "right": round(right / since, 4)})
            print(kind.__name__, rows[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
            right = since = 0
        if seen >= count:
            break
    world.close()
    return {"lr": lr, "parameters": sum(p.numel() for p in network.parameters()), "rows": rows}


def main() -> None:
    """Train both and write what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=220_000)
    count = parser.parse_args().examples
    torch.set_num_threads(1)
    found = {kind.__name__.lower(): learn(kind, lr, count) for kind, lr in ((Flattened, 1e-3), (Attention, 2e-3))}
    file = Path(__file__).parent / "results" / "look-ahead.json"
    file.write_text(json.dumps(provenance() | {"seed": 1} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
