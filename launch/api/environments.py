"""`engram.make_env`: any environment of `rl-train --env` as a Gymnasium environment."""

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ...base.errors import check_keys, check_whole, refuse
from ...envs.foreign.names import find_foreign, is_vector
from ...envs.registration import environment_parameters, find_environment, is_environment


def make_env(env: str, num_envs: int | None = None, *, render_mode: str | None = None, **parameters: Any) -> Any:
    """Make one `gymnasium.Env`, or `num_envs` environments as a `gymnasium.vector.VectorEnv`.

    A vector environment resets automatically: the step after `terminated | truncated` ignores its action and returns
    the next episode's first observation (Gymnasium's NEXT_STEP).

    Args:
        env: short name ("boxworld", "boxworld-twin"), Gymnasium id or "module:Class".
        num_envs: number of environments; None for a single `gymnasium.Env`.
        render_mode: None, or "rgb_array" for images from `render()`.
        **parameters: parameters of the environment.

    Raises:
        ValueError: unknown environment or parameter; the message suggests similar names.
    """
    if num_envs is not None:
        check_whole("num_envs", num_envs, 1)
    foreign = None if is_environment(env) else find_foreign(env)
    if foreign is None:
        environment, preset_parameters = find_environment(env)
        check_keys(env, "parameter", parameters, environment_parameters(environment))
        options: dict[str, Any] = preset_parameters | parameters | {"render_mode": render_mode}
        if num_envs is None:
            return gymnasium.make(environment.id, disable_env_checker=True, **options)
        return gymnasium.make_vec(environment.id, num_envs=num_envs, **options)
    make, allowed = foreign
    check_keys(env, "parameter", parameters, parameters if allowed is None else allowed)
    if render_mode is not None:
        parameters["render_mode"] = render_mode
    if is_vector(make):
        refuse(num_envs is None, f"num_envs is None; {env} is a vector environment; allowed: at least 1")
        return make(num_envs=num_envs, **parameters)
    if num_envs is None:
        return make(**parameters)
    return SyncVectorEnv([lambda: make(**parameters)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
