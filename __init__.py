"""engram: distributed reinforcement learning for agents with memory.

Importing engram registers its environments with Gymnasium, so that `gymnasium.make("engram/BoxWorld-v0")` works.
"""

from .envs.registration import register_envs

__version__ = "0.2.0"

register_envs()
