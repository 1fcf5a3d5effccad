"""Compiles every world, so that no container has to: numba keeps the machine code in NUMBA_CACHE_DIR."""

import numpy as np

from engram.envs.registration import make_batch, world_names

for name in world_names():
    batch = make_batch(name, 2, 0)
    n, space = batch.num_envs, batch.single_action_space
    observation, reward = batch.new_observation(), np.zeros(n, np.float32)
    ended = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    batch.reset_into(observation, 1)
    batch.step_into(np.zeros((n, *space.shape), np.int64), observation, reward, *ended)
    print(f"compiled {name}")
