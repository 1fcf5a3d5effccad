import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from engram.learners.optimizers import clip_global_norm, make_optimizer, scheduled, set_hyperparameters
from engram.learners.rmsprop import RMSPropTF

ADAM = {"lr": 0.03, "eps": 1e-3, "decay": 0.9, "momentum": 0.0, "betas": (0.8, 0.95)}


def start(seed: int) -> tuple[nn.Parameter, np.ndarray, np.ndarray]:
    """A parameter [3, 2] in float64, its value as an array and gradients of six steps [6, 3, 2]."""
    draw = np.random.default_rng(seed)
    value, gradients = draw.normal(0, 1, (3, 2)), draw.normal(0, 2, (6, 3, 2))
    return nn.Parameter(torch.from_numpy(value.copy())), value, gradients


def run(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradients: np.ndarray) -> np.ndarray:
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return parameter.detach().numpy().copy()


@pytest.mark.parametrize("eps", [0.1, 1e-10])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_rmsprop_from_tensorflows_formula(seed: int, momentum: float, eps: float) -> None:
    """One number at a time: the accumulator starts at one, eps is inside the root, lr inside the momentum."""
    lr, decay = 0.02, 0.95
    parameter, value, gradients = start(seed)
    for i in np.ndindex(*value.shape):
        mean_square, buffer = 1.0, 0.0
        for k, gradient in enumerate(gradients[(slice(None), *i)]):
            mean_square = decay * mean_square + (1 - decay) * gradient**2
            rate = lr if k < 3 else lr / 4
            buffer = momentum * buffer + rate * gradient / math.sqrt(mean_square + eps)
            value[i] -= buffer
    optimizer = RMSPropTF([parameter], lr=lr, decay=decay, momentum=momentum, eps=eps)
    run(optimizer, parameter, gradients[:3])
    set_hyperparameters(optimizer, {"lr": lr / 4})
    np.testing.assert_allclose(run(optimizer, parameter, gradients[3:]), value, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_adam_from_its_formula(seed: int) -> None:
    parameter, value, gradients = start(seed)
    beta_1, beta_2 = ADAM["betas"]
    for i in np.ndindex(*value.shape):
        mean, square = 0.0, 0.0
        for k, gradient in enumerate(gradients[(slice(None), *i)], start=1):
            mean = beta_1 * mean + (1 - beta_1) * gradient
            square = beta_2 * square + (1 - beta_2) * gradient**2
            root = math.sqrt(square / (1 - beta_2**k))
            value[i] -= ADAM["lr"] * mean / (1 - beta_1**k) / (root + ADAM["eps"])
    optimizer = make_optimizer("adam", [parameter], **ADAM)
    np.testing.assert_allclose(run(optimizer, parameter, gradients), value, rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["adam", "rmsprop_tf"])
def test_resuming_from_a_state_dict_is_exact(name: str, momentum: float) -> None:
    settings = ADAM | {"momentum": momentum}
    straight, _, gradients = start(0)
    expected = run(make_optimizer(name, [straight], **settings), straight, gradients)

    first, _, _ = start(0)
    optimizer = make_optimizer(name, [first], **settings)
    run(optimizer, first, gradients[:2])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    second = nn.Parameter(first.detach().clone())
    resumed = make_optimizer(name, [second], **(settings | {"lr": 1.0}))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert np.array_equal(run(resumed, second, gradients[2:]), expected)


def test_a_parameter_without_gradient_stays() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = RMSPropTF([used, unused], lr=0.1, decay=0.9, momentum=0.5, eps=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))


def gradients_of(*rows: list[float]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(len(row), dtype=torch.float64)) for row in rows]
    for parameter, row in zip(parameters, rows, strict=True):
        parameter.grad = torch.tensor(row, dtype=torch.float64)
    return [*parameters, nn.Parameter(torch.zeros(1))]


def test_clipping_scales_all_gradients_by_the_joint_norm() -> None:
    parameters = gradients_of([3.0, 0.0], [4.0, 12.0])
    assert clip_global_norm(parameters, 6.5).item() == pytest.approx(13.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([1.5, 0.0], dtype=torch.float64))
    torch.testing.assert_close(parameters[1].grad, torch.tensor([2.0, 6.0], dtype=torch.float64))


@pytest.mark.parametrize("max_norm", [None, 13.1])
def test_small_gradients_are_left_as_they_are(max_norm: float | None) -> None:
    parameters = gradients_of([3.0, 0.0], [4.0, 12.0])
    assert clip_global_norm(parameters, max_norm).item() == pytest.approx(13.0)
    assert [p.grad.tolist() for p in parameters[:2] if p.grad is not None] == [[3.0, 0.0], [4.0, 12.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(bad: float) -> None:
    assert not math.isfinite(clip_global_norm(gradients_of([1.0], [bad, 2.0]), None).item())


@pytest.mark.integration
def test_optimizers_work_without_torchs_compiler() -> None:
    """Importing it takes two seconds of every run's start; another test may have imported it into this process."""
    program = (
        "import sys, torch\n"
        "from engram.learners.optimizers import make_optimizer\n"
        "for name in ('adam', 'rmsprop_tf'):\n"
        "    parameter = torch.nn.Parameter(torch.ones(2))\n"
        "    optimizer = make_optimizer(name, [parameter], lr=0.1, eps=0.1, decay=0.9, momentum=0.0, "
        "betas=(0.9, 0.9))\n"
        "    optimizer.zero_grad()\n"
        "    parameter.sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "    assert (parameter < 1).all()\n"
        "assert 'torch._dynamo' not in sys.modules, 'compiler imported'\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)


def test_adam_is_torchs() -> None:
    found = []
    for make in (torch.optim.Adam, lambda p, **numbers: make_optimizer("adam", p, decay=0, momentum=0, **numbers)):
        parameter, _, gradients = start(3)
        numbers = {name: ADAM[name] for name in ("lr", "eps", "betas")}
        found.append(run(make([parameter], **numbers), parameter, gradients))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_values_at_steps() -> None:
    assert [scheduled("constant", 0.5, step, 100) for step in (0, 50, 1000)] == [0.5, 0.5, 0.5]
    assert [scheduled("linear", 0.5, step, 100) for step in (0, 25, 50, 100, 1000)] == [0.5, 0.375, 0.25, 0.0, 0.0]


def test_a_warm_up_rises_to_the_schedules_value() -> None:
    assert [scheduled("constant", 0.5, step, 100, 10) for step in (0, 4, 9, 50)] == [0.05, 0.25, 0.5, 0.5]
    assert scheduled("linear", 0.5, 25, 100, 10) == 0.375
