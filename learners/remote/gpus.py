"""Claim of the GPU that this process's learner uses, so that Ray does not assign it to another learner."""

import os
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...base.errors import NOT_AVAILABLE, EngramError

CLAIM_SECONDS = 60.0
"""Seconds within which Ray must start the process of a claim; it cannot if all GPUs are claimed."""


class Claim:
    """Ray actor that occupies one GPU until its handle is deleted."""

    def gpu(self) -> str:
        """Return the GPU's name in CUDA_VISIBLE_DEVICES."""
        return str(ray.get_gpu_ids()[0])


def reserve(device: torch.device) -> Any:
    """Claim this process's device in Ray; return the claim, which ends when it is deleted; None for the CPU.

    Ray chooses the GPU of a claim. This node's GPUs are therefore claimed until the device is among them; the other
    claims then end. Raises EngramError if another process has claimed it.
    """
    if device.type != "cuda":
        return None
    visible, index = os.environ.get("CUDA_VISIBLE_DEVICES", ""), device.index or 0
    wanted = visible.split(",")[index] if visible else str(index)
    here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    make: Any = ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=here)(Claim)
    claims: dict[str, Any] = {}
    while wanted not in claims:
        claim = make.remote()
        try:
            gpu: Any = ray.get(claim.gpu.remote(), timeout=CLAIM_SECONDS)
        except GetTimeoutError:
            free = ", ".join(sorted(claims)) or "none"
            raise EngramError(
                f"--device {device}: another process has claimed GPU {wanted} of this machine in Ray; free: {free}",
                NOT_AVAILABLE,
            ) from None
        claims[gpu] = claim
    return claims[wanted]
