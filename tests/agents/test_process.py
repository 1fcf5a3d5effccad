"""Settings of a process that runs networks, made before it starts."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engram.agents import process

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_a_process_is_prepared():
    before = torch.get_num_threads()
    try:
        process.prepare_process(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch below 2.9 has other flags")
def test_a_process_with_a_gpu_computes_exact_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acting too: by default cuDNN rounds the factors of convolutions."""
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before, threads = [place.fp32_precision for place in places], torch.get_num_threads()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    try:
        process.prepare_process(1)
        assert [place.fp32_precision for place in places] == ["ieee"] * 3
        process.round_factors(True)()
        assert [place.fp32_precision for place in places] == ["ieee"] * 3, "restored"
    finally:
        torch.set_num_threads(threads)
        for place, old in zip(places, before, strict=True):
            place.fp32_precision = old


@pytest.mark.integration
@pytest.mark.skipif(not THP.exists() or "[never]" in THP.read_text(), reason="a system without transparent huge pages")
def test_a_prepared_process_has_large_pages():
    script = """if True:
        import torch
        from pathlib import Path
        from engram.agents.process import prepare_process
        def huge():
            lines = Path("/proc/self/smaps").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
        prepare_process(1)
        before = huge()
        kept = [torch.ones(2**20) for _ in range(16)]
        print(huge() - before)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 8 * 1024  # KiB of 64 MiB: a system short of whole pages gives fewer
