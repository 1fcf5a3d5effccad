"""Cores with matrix states against their equations, one sequence and one step at a time."""

import math

import pytest
import torch

from engram.agents.cores.linear.chunked import MLSTM, DeltaNet
from engram.agents.cores.linear.hadamard import SHM, Mamba2, scrambled
from slow_layers import SIZE, check_steps, layer_norm
from unrolls import compare_with_loop, random_inputs, random_state, randomize

HIDDEN, HEADS, HEAD, STATE = 6, 2, 4, 3


def silu(x):
    return x * torch.sigmoid(x)


def softplus(x):
    return torch.log1p(torch.exp(x))


def rms_norm(x, weight):
    return x / (x.square().mean() + 1e-5).sqrt() * weight


def heads(vector, count=HEADS):
    return vector.reshape(count, -1)


def slow_delta(mixer, u, state):
    """The equations of DeltaNet, head by head."""
    (fast,) = state
    width, writes = HEADS * HEAD, mixer.num_writes
    maps = mixer.maps.weight @ u
    query, gate = silu(heads(maps[:width])), silu(heads(maps[width : 2 * width]))
    rates = torch.sigmoid(mixer.rate.weight @ u) * (2 if mixer.negative else 1)
    new, read = [], []
    for head in range(HEADS):
        S = fast[head].clone()
        if mixer.decay is not None:
            step = softplus(mixer.decay.step.weight[head] @ u + mixer.decay.step.bias[head])
            S = S * torch.exp(-torch.exp(mixer.decay.rate[head]) * step)
        for i in range(writes):
            key = silu(heads(maps[(2 + i) * width :][:width])[head])
            value = silu(heads(maps[(2 + writes + i) * width :][:width])[head])
            key = key / key.norm()
            S = S + rates[i * HEADS + head] * torch.outer(key, value - S.T @ key)
        new.append(S)
        read.append(rms_norm(S.T @ (query[head] / query[head].norm()), mixer.scale) * gate[head])
    return mixer.out.weight @ torch.cat(read), [torch.stack(new)]


@pytest.mark.parametrize("options", [{}, {"gated": True}, {"negative": True, "num_writes": 2, "gated": True}])
def test_delta_net_is_its_equations(options):
    core = randomize(DeltaNet(SIZE, HIDDEN, 2, HEADS, HEAD, **options))
    check_steps(core, random_state(core), slow_delta)


def slow_convolution(convolution, x, past):
    window = torch.cat([past, x.unsqueeze(0)])  # oldest first
    total = convolution.bias.clone()
    for lag in range(convolution.size):
        total = total + convolution.taps[lag] * window[-1 - lag]
    return silu(total), window[1:]


def slow_mamba2(mixer, u, state):
    """The equations of Mamba-2, head by head."""
    h, past = state
    width = HEADS * HEAD
    maps = mixer.maps.weight @ u
    gate, mixed, step = maps[:width], maps[width : 2 * width + 2 * STATE], maps[2 * width + 2 * STATE :]
    mixed, past = slow_convolution(mixer.convolution, mixed, past)
    x, B, C = heads(mixed[:width]), mixed[width : width + STATE], mixed[width + STATE :]
    new, read = [], []
    for head in range(HEADS):
        delta = softplus(step[head] + mixer.step_bias[head])
        decay = torch.exp(-delta * torch.exp(mixer.log_rate[head]))
        new.append(decay * h[head] + delta * torch.outer(B, x[head]))
        read.append(new[-1].T @ C + mixer.skip[head] * x[head])
    y = rms_norm(torch.cat(read) * silu(gate), mixer.scale)
    return mixer.out.weight @ y, [torch.stack(new), past]


def slow_s6(mixer, u, state):
    """The equations of Mamba, channel by channel."""
    h, past = state
    width = HEADS * HEAD
    maps = mixer.maps.weight @ u
    x, past = slow_convolution(mixer.convolution, maps[:width], past)
    selected = mixer.select.weight @ x
    low, B, C = selected[: mixer.rank], selected[mixer.rank : mixer.rank + STATE], selected[mixer.rank + STATE :]
    delta = softplus(mixer.step.weight @ low + mixer.step.bias)
    new = [torch.exp(-delta[c] * torch.exp(mixer.log_rate[c])) * h[c] + delta[c] * B * x[c] for c in range(len(delta))]
    y = torch.stack([row @ C for row in new]) + mixer.skip * x
    return mixer.out.weight @ (y * silu(maps[width:])), [torch.stack(new), past]


@pytest.mark.parametrize(("s6", "slow"), [(False, slow_mamba2), (True, slow_s6)])
def test_mamba_is_its_equations(s6, slow):
    core = randomize(Mamba2(SIZE, HIDDEN, 2, HEADS, HEAD, STATE, s6=s6))
    check_steps(core, random_state(core), slow, steps=5)


def slow_mlstm(mixer, u, state):
    """The equations of mLSTM without a stabilizer: C and n as they are, exp(m) times what the core holds."""
    joined, m = state
    width = HEADS * HEAD
    maps = mixer.maps.weight @ u
    gates = mixer.gates.weight @ u + mixer.gates.bias
    new, maxima, read = [], [], []
    for head in range(HEADS):
        part = [heads(maps[n * width :][:width])[head] for n in range(4)]
        query, key, value, out = part[0], part[1] / math.sqrt(HEAD), part[2], torch.sigmoid(part[3])
        forget, new_in = torch.sigmoid(gates[HEADS + head]), torch.exp(gates[head])
        whole = joined[head] * torch.exp(m[head])
        C = forget * whole[:, :-1].T + new_in * torch.outer(value, key)
        n = forget * whole[:, -1] + new_in * key
        h = C @ query / max((n @ query).abs(), torch.tensor(1.0, dtype=torch.float64))
        maxima.append(max(forget.log() + m[head], gates[head]))
        new.append(torch.cat([C.T, n.unsqueeze(1)], 1) / torch.exp(maxima[-1]))
        read.append(out * layer_norm(h) * mixer.scale[head])
    return mixer.out.weight @ torch.cat(read), [torch.stack(new), torch.stack(maxima)]


def test_mlstm_is_its_equations():
    core = randomize(MLSTM(SIZE, HIDDEN, 2, HEADS, HEAD))
    check_steps(core, random_state(core), slow_mlstm)


def test_mlstm_stays_finite_where_its_gates_would_overflow():
    core = MLSTM(SIZE, HIDDEN, 1, HEADS, HEAD)
    with torch.no_grad():
        core.mixers[0].gates.bias[:HEADS] = 200.0  # exp(200) is no float32
    inputs, reset = random_inputs(SIZE)
    outputs, state, _ = core.unroll(inputs.float().detach(), reset, core.initial_state(5))
    assert bool(outputs.isfinite().all())
    assert all(bool(leaf.isfinite().all()) for leaf in state)


def slow_shm(mixer, u, state):
    """The equations of SHM."""
    memory, step = state
    k, q, v, c, shortcut = (mixer.maps.weight @ u).reshape(5, -1)
    k, q = k.clamp(min=0) / (k.clamp(min=0).sum() + 1e-5), q.clamp(min=0) / (q.clamp(min=0).sum() + 1e-5)
    theta = mixer.thetas[int(scrambled(step)) % len(mixer.thetas)]
    new = (1 + torch.tanh(torch.outer(theta, c))) * memory
    new = new + torch.sigmoid(mixer.rate.weight[0] @ u) * torch.outer(v, k)
    return mixer.out.weight @ (new @ q + shortcut) + mixer.out.bias, [new, step + 1]


@pytest.mark.parametrize("num_thetas", [1, 5])
def test_shm_is_its_equations(num_thetas):
    core = randomize(SHM(SIZE, HIDDEN, 2, HEAD, num_thetas))
    check_steps(core, core.initial_state(5), slow_shm, steps=5)


def test_shm_takes_every_row_about_equally_often():
    rows = scrambled(torch.arange(12_800)) % 128
    counts = rows.bincount(minlength=128)
    assert counts.min() > 60
    assert counts.max() < 150
    assert not torch.equal(rows[:-1], rows[1:])


@pytest.mark.integration
@pytest.mark.parametrize(("bptt_length", "density"), [(None, 0.05), (1, 0.0), (7, 0.6), (40, 0.05), (7, 0.0)])
@pytest.mark.parametrize(
    "core",
    [
        DeltaNet(SIZE, HIDDEN, 2, HEADS, HEAD, num_writes=2, gated=True),
        Mamba2(SIZE, HIDDEN, 2, HEADS, HEAD, STATE),
        Mamba2(SIZE, HIDDEN, 1, HEADS, HEAD, STATE, s6=True),
        MLSTM(SIZE, HIDDEN, 1, HEADS, HEAD),
    ],
    ids=["delta-net", "mamba2", "s6", "mlstm"],
)
def test_chunks_are_the_loop_with_its_gradients(core, density, bptt_length):
    compare_with_loop(randomize(core), SIZE, bptt_length, tolerance=1e-8, steps=75, density=density)
