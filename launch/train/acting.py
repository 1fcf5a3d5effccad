"""Life cycle of a run's actors, in this process or in Ray processes, and the watchdog of a run that hangs."""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import torch

from ...actors.factory import ActorFactory
from ...actors.local_pool import LocalPool
from ...actors.pool import ActorPool
from ...actors.thread_pool import ThreadPool
from ...base.processes import StopFlag, end_children, leave_at_once
from ...learners.group import Share
from ...learners.learner import Learner
from ..config.run_config import RunConfig, find_device
from ..runs.directory import resume_command

if TYPE_CHECKING:
    from .trainer import Trainer

LOOK_SECONDS = 0.1  # Seconds between checks for a stop while actors start
CLOSE_SECONDS = 15.0  # Seconds for the actors to close their environments and end
ACTOR_NICENESS = 10  # Niceness of actors: the learner, for which the run waits, has priority on a shared core

WATCH_SECONDS = 1.0  # Seconds between two checks of the watchdog
START_SECONDS = 600.0  # Smallest limit until the first progress: a machine may have to boot for the actors
OBEY_SECONDS = 8.0
"""Seconds within which a stop request must end the training loop; container runtimes send SIGKILL after 10 s."""
FAILED = 3  # Exit code of a run ended by an external cause, so that --restarts resumes it


class StoppedError(Exception):
    """A stop was requested before training began."""


class Acting(contextlib.AbstractContextManager["Acting"]):
    """The actor pool and its Ray session, if any; both end with the `with` statement."""

    def __init__(self, config: RunConfig, factory: ActorFactory, stop: StopFlag) -> None:
        self.config, self._factory, self._stop = config, factory, stop
        self.exit_code = 1  # Exit code of the process if Ray cannot be stopped and the process has to end immediately
        self._pool: Future[ActorPool] = Future()
        self._report: Callable[[str], None] = print
        self._starting, self._over = False, threading.Event()

    def begin(self, report: Callable[[str], None]) -> None:
        """Start Ray and its actors in a thread; without Ray, `start` makes the actors.

        Starting Ray is mostly waiting, and outside the main thread it installs no signal handlers. The thread
        lives as long as Ray: Linux can end a process when the thread that started it ends (PR_SET_PDEATHSIG).
        """
        self._report, self._starting = report, not self.config.in_process
        if self._starting:
            threading.Thread(target=self._make_pool, daemon=True).start()

    def start(self) -> ActorPool:
        """Return the actors once they have started. Raises StoppedError if a stop is requested first."""
        if not self._starting:
            self._make_pool()
        while not wait([self._pool], LOOK_SECONDS).done:
            if self._stop.reason:
                raise StoppedError
        self._stop.renew()  # Ray has installed handlers of its own below Python's
        pool = self._pool.result()
        if self._stop.reason:
            raise StoppedError
        return pool

    def _make_pool(self) -> None:
        try:
            self._pool.set_result(make_pool(self.config, self._factory, self._report))
        except BaseException as problem:
            self._pool.set_exception(problem)
        if self._starting:
            self._over.wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._starting and not self._pool.done():
            if kind is None:
                leave_at_once(self.exit_code)  # rather than wait for actors that are no longer needed
            wait([self._pool])
        if self._pool.done() and not self._pool.exception():
            # An environment may also hang in `close`.
            impatient = threading.Timer(CLOSE_SECONDS, lambda: leave(self.config, self.exit_code))
            impatient.daemon = True
            impatient.start()
            try:
                self._pool.result().close()
            except Exception as problem:
                if kind is None:
                    raise
                print(f"rl-train: the actors did not stop: {problem}", file=sys.stderr)  # the first error is raised
            finally:
                impatient.cancel()
                impatient.join()
        if not self.config.in_process:
            from ..cluster.ray_session import stop_ray

            if not stop_ray():
                if kind is not None:
                    sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
                leave_at_once(self.exit_code)
        self._over.set()


class Watchdog:
    """Watchdog of a run, active during its `with` statement until `close`: first while environments are created and
    reset, then of the training loop.

    A call into Ray or an environment may wait forever in native code, where Python handles no signals. A thread checks
    once per second. At a limit, it writes a checkpoint, which is consistent since the learner is not computing at that
    time, prints the reason and the stack of every thread, and ends the process.
    """

    def __init__(self, config: RunConfig, stop: StopFlag) -> None:
        self.trainer: Trainer | None = None
        self._first = (0, 0)  # Steps and progress when training begins
        self._config, self._stop = config, stop
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Watchdog":
        if self._in_main:
            self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, trainer: "Trainer") -> None:
        self.trainer = trainer  # first: the thread then begins to count, with the limit for the first progress
        self._first = trainer.steps, trainer.progress

    def close(self) -> None:
        """End the watch; only the first call has an effect."""
        if self._over.is_set():
            return
        if self._in_main:
            signal.set_wakeup_fd(self._previous)
        self._over.set()
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        stall, watched, alone = 60 * self._config.stall_timeout, self.trainer, threading.RLock()
        request: tuple[float, str] | None = None  # Time and reason of the first stop request
        updated = moved = time.monotonic()  # Time of the last update, and of the last progress of any kind
        last = (0, 0)
        while not self._over.is_set():
            numbers = os.read(self._reader, 64) if select.select([self._reader], [], [], WATCH_SECONDS)[0] else b""
            now, trainer = time.monotonic(), self.trainer
            reasons = [signal.Signals(number).name for number in numbers if number in StopFlag.SIGNALS]
            if request is None and (reason := next(iter(reasons), self._stop.reason)):
                request = now, reason
            lock = trainer.lock if trainer else alone
            if not lock.acquire(blocking=False):  # computing or saving takes as long as it takes
                updated = moved = now
                continue
            try:
                current = (trainer.steps, trainer.progress) if trainer else (0, 0)
                if trainer is not watched:
                    watched, updated, moved = trainer, now, now
                updated = updated if current[0] == last[0] else now
                moved = moved if current == last else now
                last = current
                limit = stall and (stall if current != self._first else max(stall, START_SECONDS))
                if self._over.is_set():
                    return
                if died := self.died():
                    self.end(f"{died} died", FAILED)
                elif request and now - max(request[0], updated) > OBEY_SECONDS:
                    self.end(request[1], 0)
                elif 0 < limit < now - moved:
                    self.end(f"no update for {now - moved:.0f} s, and no environment step", FAILED)
            finally:
                lock.release()

    def died(self) -> str:
        """Name a dead process that the training loop needs; empty if there is none."""
        if self._config.in_process or self.trainer is None:
            return ""
        from ...actors.remote.slot import dead_part  # imports Ray

        return dead_part()

    def end(self, reason: str, code: int) -> NoReturn:
        """Write a checkpoint if training has begun, print the reason, and end the process. The caller has the lock."""
        trainer, ended = self.trainer, f"rl-train: {'ended' if code else 'stopped'} ({reason})"
        if trainer is None:
            print(f"{ended} before training began", file=sys.stderr, flush=True)
        else:
            trainer.rescuing = True
            if trainer.unsaved:
                trainer.save()
            if trainer.mirror:
                trainer.mirror.close()
            print(f"{ended} after {trainer.steps:,} steps", file=sys.stderr)
            print(f"rl-train: continue with: {resume_command(trainer.directory.path)}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
        leave(self._config, code)


def leave(config: RunConfig, code: int) -> NoReturn:
    """End this process immediately, with the processes that its environments have started."""
    if config.in_process:  # with Ray, the orphan cleanup ends the remaining processes
        end_children()
    leave_at_once(code)


def make_pool(config: RunConfig, factory: ActorFactory, report: Callable[[str], None]) -> ActorPool:
    """Create the actors: in this process with --local or --act-on, otherwise in Ray processes."""
    setting = config.pbt.together
    together = config.population > 0 and (setting == "on" or (setting == "auto" and config.act_on == "cuda"))
    actors, ahead = config.fixed_actors or 1, (config.lag_bound + 1) * config.columns
    common = (factory.make_actor, actors, config.max_actor_failures, report)
    if config.local:
        return LocalPool(*common, together=together)
    if config.act_on != "auto":
        find_device(factory.device)
        return ThreadPool(*common, num_envs=config.actor_envs, ahead=ahead, together=together)
    from ..cluster.ray_session import require_gpus, start_ray  # Ray takes a second to import

    working = -(-ahead // config.actor_envs) * config.num_members
    if not config.synchronous and actors > working:
        report(
            f"at most {working} of the {config.num_actors} actors work at once: more unrolls would be more than "
            f"{config.lag_bound} updates old; a larger --envs-per-update or --max-lag lets more of them work"
        )
    start_ray(config.fixed_actors, config.ray_address, config.actor_cpus, config.num_learners)
    device = find_device(config.device, config.num_learners)
    learners = 0 if config.num_learners == 1 or device.type == "cpu" else config.num_learners
    required = (1, min(learners, 1)) if config.ray_address else (actors, learners)  # a cluster may grow
    require_gpus(required[0], config.actor_gpus, required[1])
    pool = ray_pool(config, factory, config.shares[0], report)
    if config.num_learners == 1 or config.population:
        return pool
    from ...learners.remote.team import Team

    def pool_of(share: Share) -> Callable[[Callable[[str], None]], ActorPool]:
        return partial(ray_pool, config, factory, share)

    learner = partial(make_learner, config, factory, device)
    return Team(pool, config.shares, learner, pool_of, config.synchronous, report, device)


def ray_pool(config: RunConfig, factory: ActorFactory, share: Share, report: Callable[[str], None]) -> ActorPool:
    from ...actors.remote.pool import RayPool  # Ray takes a second to import; --local does not need it
    from ...actors.remote.slot import RequestWindow

    actors = config.fixed_actors and share.actors
    return RayPool(
        factory.make_actor,
        actors,
        config.max_actor_failures,
        report,
        window=RequestWindow(share.environments, config.lag_bound, config.actor_envs, actors),
        cpus_per_actor=config.actor_cpus,
        gpus_per_actor=config.actor_gpus,
        first=share.first_actor,
        niceness=ACTOR_NICENESS,
        timeout=config.actor_timeout,
        near=len(config.shares) > 1,
    )


def make_learner(config: RunConfig, factory: ActorFactory, device: torch.device) -> Learner:
    """Create the learner of another process; its weights are set later, and Ray exposes only the claimed GPU to it."""
    with contextlib.closing(factory.make_batch(num_envs=1)) as batch:
        return Learner(factory.make_agent(batch).to(device.type), config.learner, config.total_steps)


def deal_members(
    config: RunConfig, learners: Sequence[Learner], pool: ActorPool, report: Callable[[str], None], whole: bool = False
) -> Sequence[Learner]:
    """Distribute the learners of a population over --num-learners processes, of which this one is the first. `whole`:
    whether this process receives the steps of all unrolls."""
    if config.num_learners == 1 or not config.population:
        return learners
    from ...actors.remote.pool import RayPool
    from ...learners.remote.members import MemberHome, RemoteLearner
    from ...learners.remote.processes import reserve

    assert isinstance(pool, RayPool), "several learners have their actors in Ray processes"
    processes, device = config.num_learners, learners[0].device
    claim, make = reserve(device), partial(make_learner, config, config.factory(), device)
    homes = [MemberHome(rank, make, device, report) for rank in range(1, processes)]
    for home in homes:
        home.wait()
    if not whole:
        pool.apart = frozenset(member for member in range(len(learners)) if member % processes)
    dealt = list(learners)
    for member, learner in enumerate(learners):
        if rank := member % processes:
            parts = learner.agent, learner.config, learner.total_steps
            dealt[member] = RemoteLearner(*parts, homes[rank - 1], member, claim)
    return dealt
