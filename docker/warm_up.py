"""Compiles every environment and core, so that no container has to: numba keeps the machine code in NUMBA_CACHE_DIR."""

import numpy as np
import torch

from engram.agents.cores import make_core
from engram.envs.registration import environment_names, make_batch

for name in environment_names():
    batch = make_batch(name, 2, 0)
    n, space = batch.num_envs, batch.single_action_space
    observation, reward = batch.new_observation(), np.zeros(n, np.float32)
    ended = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(observation, 1)
    batch.step_into(np.zeros((n, *space.shape), np.int64), observation, reward, *ended)
    print(f"compiled {name}")

for name in ("concrete", "parallel", "rmc", "lstm"):
    core, inputs = make_core(name, 8), torch.randn(2, 3, 8)
    outputs, _, _ = core.unroll(inputs, torch.zeros(2, 3, dtype=torch.bool), core.initial_state(3))
    torch.autograd.grad(outputs.sum(), list(core.parameters()))
    print(f"compiled {name}")
