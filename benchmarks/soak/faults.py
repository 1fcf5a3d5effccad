"""The soak's faults, injected into a training run."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from soak import Soak

BLOCKED_SECONDS = 15
"""Seconds that a disk is full or read-only: several checkpoints are due in this time."""


def workers(process: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """The run's Ray processes of a class."""
    family = psutil.Process(process.pid).children(recursive=True)
    result = []
    for each in family:
        try:
            if f"ray::{name}" in " ".join(each.cmdline()):
                result.append(each)
        except psutil.Error:
            continue
    return result


def kill_actor(soak: "Soak", draw: random.Random) -> None:
    """SIGKILL, as from the kernel when memory is short."""
    draw.choice(workers(soak.process, "ActorProcess")).send_signal(signal.SIGKILL)


def hang_actor(soak: "Soak", draw: random.Random) -> None:
    """SIGSTOP: it neither answers nor dies."""
    draw.choice(workers(soak.process, "ActorProcess")).send_signal(signal.SIGSTOP)


def raise_in_environment(soak: "Soak", draw: random.Random) -> None:
    """The next step of some actor's environment raises."""
    soak.flag.touch()


def kill_learner(soak: "Soak", draw: random.Random) -> None:
    """SIGKILL of the learner's process; resumed from the newest checkpoint."""
    soak.stop(signal.SIGKILL)
    soak.start()


def spot_notice(soak: "Soak", draw: random.Random) -> None:
    """SIGTERM, as the cloud sends before it takes the machine back; the run must end with a checkpoint."""
    soak.stop(signal.SIGTERM)
    soak.start()


def truncate_checkpoint(soak: "Soak", draw: random.Random) -> None:
    """SIGKILL, and half of the newest checkpoint's tensors are gone; the one before must be used."""
    soak.stop(signal.SIGKILL)
    file = soak.checkpoints()[-1] / "tensors.pt"
    os.truncate(file, file.stat().st_size // 2)
    soak.start()


def flip_bit(soak: "Soak", draw: random.Random) -> None:
    """SIGTERM, and a random bit of the newest checkpoint is flipped; the one before must be used."""
    soak.stop(signal.SIGTERM)
    file = soak.checkpoints()[-1] / draw.choice(["tensors.pt", "state.json", "SHA256SUMS"])
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    soak.start()


def full_disk(soak: "Soak", draw: random.Random) -> None:
    """The disk of the run directory is full for a while."""
    filler = soak.run / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass
    time.sleep(BLOCKED_SECONDS)
    filler.unlink()


def read_only_disk(soak: "Soak", draw: random.Random) -> None:
    """The disk of the run directory cannot be written for a while."""
    # Metrics hold files open for writing; a lazy bind mount on top refuses new ones as a remount of the disk would.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", soak.run / "checkpoints"], check=True)
    time.sleep(BLOCKED_SECONDS)
    subprocess.run(["umount", "-l", soak.run / "checkpoints"], check=True)


def remove_tensorboard(soak: "Soak", draw: random.Random) -> None:
    """The TensorBoard folder is deleted while the run writes there."""
    shutil.rmtree(soak.run / "tensorboard")


def second_run(soak: "Soak", draw: random.Random) -> None:
    """A second run starts in the same directory; it must be refused and not disturb the first."""
    arguments = draw.choice([["--resume", str(soak.run)], [*soak.words, "--run-dir", str(soak.run)]])
    done = subprocess.run([soak.rl_train, *arguments], capture_output=True, text=True, check=False, cwd=soak.here)
    if done.returncode != 2 or "is in use by" not in done.stderr:
        soak.error(f"second run: exit code {done.returncode}, {done.stderr[-300:]!r}")


FAULTS: list[Callable[["Soak", random.Random], None]] = [
    kill_actor,
    hang_actor,
    raise_in_environment,
    kill_learner,
    spot_notice,
    truncate_checkpoint,
    flip_bit,
    full_disk,
    read_only_disk,
    remove_tensorboard,
    second_run,
]
