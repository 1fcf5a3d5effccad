"""The grid torso's convolutions against a loop over cells."""

import pytest
import torch
from torch import Tensor

from engram.agents.config import TorsoConfig
from engram.agents.specs import ArraySpec
from engram.agents.torsos import make_torso


def slow_convolution(image: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """[C, rows, cols] -> relu of the sums over each window [D, ceil(rows / stride), ceil(cols / stride)].

    Windows reach beyond both edges of an axis equally far, or one cell further at its end.
    """
    _, rows, cols = image.shape
    size = weight.shape[2]
    out = torch.zeros(len(weight), -(-rows // stride), -(-cols // stride))
    before = [max((n - 1) * stride + size - full, 0) // 2 for n, full in zip(out.shape[1:], (rows, cols), strict=True)]
    for d in range(out.shape[0]):
        for r in range(out.shape[1]):
            for c in range(out.shape[2]):
                total = bias[d].clone()
                for y in range(size):
                    for x in range(size):
                        row, col = r * stride + y - before[0], c * stride + x - before[1]
                        if 0 <= row < rows and 0 <= col < cols:
                            total += (weight[d, :, y, x] * image[:, row, col]).sum()
                out[d, r, c] = max(total, torch.zeros(()))
    return out


@pytest.mark.parametrize(("kernel", "strides"), [(2, ()), (3, (1, 2)), (2, (2, 3)), (4, (3, 1)), (1, (2, 2))])
@torch.no_grad()
def test_strided_convolutions(kernel: int, strides: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    config = TorsoConfig(conv_channels=(3, 2), conv_kernel=kernel, conv_strides=strides)
    torso = make_torso(ArraySpec((5, 7, 2)), config)
    observation = torch.randn(1, 5, 7, 2)
    image = observation[0].permute(2, 0, 1)
    for conv, stride in zip(torso.convs, strides or (1, 1), strict=True):
        image = slow_convolution(image, conv.weight, conv.bias, stride)
    _, rows, cols = image.shape
    assert torso.image == (4, rows, cols)
    out = torso(observation).reshape(4, rows, cols)
    torch.testing.assert_close(out[:2], image)
    torch.testing.assert_close(out[2], torch.linspace(-1, 1, rows).unsqueeze(1).expand(rows, cols))
    torch.testing.assert_close(out[3], torch.linspace(-1, 1, cols).expand(rows, cols))


def test_strides_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"conv_strides has 1 values; allowed: 2, one for each of conv_channels"):
        TorsoConfig(conv_strides=(2,))
    with pytest.raises(ValueError, match=r"conv_strides is \(0, 1\); allowed: values of at least 1"):
        TorsoConfig(conv_strides=(0, 1))
    with pytest.raises(ValueError, match="conv_kernel is 0; allowed: at least 1"):
        TorsoConfig(conv_kernel=0)
