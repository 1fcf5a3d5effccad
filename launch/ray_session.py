"""A private Ray on this machine, started for one run and stopped with it."""

import logging
import os

import ray

from . import janitor

OBJECT_STORE_BYTES = 1 << 30
"""Room for unrolls in flight: far more than two per actor ever take, small enough for containers."""


def start_ray(num_actors: int) -> None:
    """Start Ray if this process has none yet.

    Actors run one torch thread each; the environment variables reach their processes through Ray's own.
    """
    if ray.is_initialized():
        return
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves actors beside any other work
    janitor.hire()
    ray.init(
        num_cpus=max(num_actors, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
