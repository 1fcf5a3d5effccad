"""The GPU of the run's process is claimed in Ray, which counts GPUs here that do not exist."""

from collections.abc import Iterator
from functools import partial

import pytest
import ray
import torch

from engram.base.errors import EngramError
from engram.launch.cluster.ray_session import require_gpus, start_ray, stop_ray
from engram.learners.remote import processes
from engram.learners.remote.processes import Claim, claims, reserve
from runs import wait_for


@pytest.fixture(scope="module")
def three_gpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", partial(ray.init, num_gpus=3))
        start_ray(1, num_learners=3)
    yield
    stop_ray()


@pytest.mark.integration
def test_no_other_learner_gets_the_gpu_of_this_process(three_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:1")
    claim = reserve(device)
    assert ray.get(claim.gpu.remote()) == "1"
    wait_for(lambda: ray.available_resources().get("GPU", 0) == 2)
    others = [ray.remote(**claims(device))(Claim).remote() for _ in range(2)]
    assert sorted(ray.get([other.gpu.remote() for other in others])) == ["0", "2"]
    monkeypatch.setattr(processes, "CLAIM_SECONDS", 1.0)
    with pytest.raises(EngramError, match=r"--device cuda:1: another process has claimed GPU 1 of .*; free: none"):
        reserve(device)
    assert reserve(torch.device("cpu")) is None
    assert claims(torch.device("cpu"))["num_gpus"] == 0
    del claim, others
    wait_for(lambda: ray.available_resources().get("GPU", 0) == 3)
    monkeypatch.setattr(processes, "CLAIM_SECONDS", 60.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert ray.get(reserve(device).gpu.remote()) == "0"


@pytest.mark.integration
def test_more_learners_than_gpus_are_refused(three_gpus: None) -> None:
    require_gpus(1, 0.0, 3)
    with pytest.raises(EngramError, match="num_learners is 4; allowed with --device cuda: at most 3, the GPUs in Ray"):
        require_gpus(1, 0.0, 4)
