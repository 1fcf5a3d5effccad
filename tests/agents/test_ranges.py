"""Compiled squashing functions stay in their range."""

import numpy as np
import pytest

from engram.agents.cores.fast.elementwise import sigmoid, tanh


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_and_tanh_stay_in_their_range(dtype: type) -> None:
    x = np.concatenate([np.linspace(-30, 30, 200_001), [-np.inf, np.inf]]).astype(dtype)
    squashed, gate = np.empty_like(x), x.copy()
    tanh(x, squashed)
    sigmoid(gate)
    assert np.abs(squashed).max() == 1
    assert (gate.min(), gate.max()) >= (0, 1)
    assert gate.max() == 1
    np.testing.assert_allclose(squashed, np.tanh(x.astype(np.float64)), atol=5e-7)
