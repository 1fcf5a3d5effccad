"""`--video-every`: evaluation episodes as videos in TensorBoard's images and in trackers."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np

from ...base.errors import EngramError
from ...envs.registration import can_draw
from ..metrics.member import Member
from ..run.config import RunConfig
from ..run.trained import actor_in_training
from .gif import encoded, film

TAG = "eval/video"


class Camera:
    """Films one evaluation episode of the newest weights between two updates, in a separate environment. The levels
    depend on the run's seed and on the number of videos due before. An episode longer than 600 steps is cut."""

    def __init__(self, config: RunConfig) -> None:
        if not can_draw(config.env):
            raise EngramError(f"--video-every {config.video_every}: {config.env} declares no images (rgb_array)")
        self.config = config
        self.factory = replace(config.factory(), imitate="", num_envs=1, unroll_length=1)

    def look(self, member: Member, before: int, at_step: Callable[[], None] = lambda: None) -> None:
        """Film a member if a video was due between `before` and its current steps.

        `at_step` is called after each step of the environment; an exception from it ends the video.
        """
        number = member.steps // self.config.video_every
        if member.writer is None or not (
            number > before // self.config.video_every or (member.done and before < member.steps)
        ):
            return
        try:
            gif, width, height = self._film(member, number, at_step)
        except ValueError as problem:
            member.notices.append(f"no video: {problem}")
        else:
            member.writer.video(member.steps, TAG, gif, width, height)

    def _film(self, member: Member, number: int, at_step: Callable[[], None]) -> tuple[bytes, int, int]:
        seed = int(np.random.SeedSequence((self.config.seed, number)).generate_state(1)[0])
        with closing(actor_in_training(self.factory, member.learner.agent, seed)) as actor:
            actor.call_at_steps(at_step)
            frames = film(actor, 1)
        return encoded(frames), *frames[0][0].size
