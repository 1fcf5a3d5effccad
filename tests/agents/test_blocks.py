"""Blocks of steps that begin where episodes do."""

import torch

from engram.agents.cores.linear.chunked import cut_into_blocks


def test_blocks_begin_at_resets_and_cover_every_step_once():
    torch.manual_seed(0)
    for density, period in ((0.0, None), (0.1, None), (0.1, 7), (1.0, 2)):
        reset = torch.rand(53, 4) < density
        blocks = cut_into_blocks(reset, 5, period)
        assert sorted(blocks.steps[blocks.used].tolist()) == list(range(53 * 4))
        for step in range(53 * 4):
            slot, block = blocks.slot[step], blocks.block[step]
            assert blocks.steps[slot, block] == step
            assert slot == 0 or not reset.flatten()[step]
            assert slot == 0 or period is None or step // 4 % period
        for depth, before in zip(blocks.depths[1:], blocks.depths, strict=False):
            for block in range(depth.start, depth.stop):
                first = blocks.steps[0, block]
                assert not reset.flatten()[first]
                assert before.start <= blocks.block[first - 4] < before.stop
