"""Timeouts of environments that count frames."""

from ..base.messages import check_integer

NEVER = 2**62  # A frame that is never reached


def last_frame(timeout_frames: int) -> int:
    """Return the last frame of an episode: NEVER for -1. Raises ValueError for any other value below 1."""
    check_integer("timeout_frames", timeout_frames, -1, None)
    if timeout_frames == 0:
        raise ValueError("timeout_frames is 0; allowed: -1 (no timeout), or at least 1")
    return timeout_frames if timeout_frames > 0 else NEVER
