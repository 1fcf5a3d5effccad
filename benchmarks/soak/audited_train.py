"""`rl-train` with an independent ledger of arrived unrolls and of the content of each update.

    python audited_train.py LEDGER [arguments of rl-train ...]

Every unroll that the pool hands out gets a fingerprint and a count of the steps in each of its columns. Every update
takes as many columns from that queue as its batch is wide; the steps counted here must equal the learner's count of
consumed steps. LEDGER gets one line for each, written through at once, since the process may be killed next.
"""

import hashlib
import json
import os
import sys
from collections import deque
from typing import Any

from engram.actors.remote.pool import RayPool
from engram.launch.train import command as train
from engram.learners.learner import Learner


class Ledger:
    """Counts unrolls and updates independently, by wrapping the methods of the pool and the learner."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._columns: deque[tuple[str, int]] = deque()
        """Fingerprint of the unroll and valid steps of each column that no update has taken yet."""
        self._begun = False

    def write(self, **entry: Any) -> None:
        """One line, as a whole."""
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def arrived(self, unroll: Any) -> None:
        """Record an unroll from the pool."""
        if unroll is None:
            return
        env, agent = unroll.env, unroll.agent
        digest = hashlib.blake2b(digest_size=8)
        for leaf in (agent.logits, agent.action, agent.value, env.observation[0], env.reward):
            digest.update(leaf.contiguous().numpy())
        steps = (~(env.terminated | env.truncated)[:-1]).sum(0).tolist()
        name = f"{unroll.actor}-{digest.hexdigest()}"
        self._columns.extend((name, count) for count in steps)

    def trained(self, before: tuple[int, int], after: tuple[int, int], width: int) -> None:
        """An update took `width` columns and moved the learner's (updates, steps)."""
        if not self._begun:
            self._begun = True
            self.write(begin=before, process=os.getpid())
        taken = [self._columns.popleft() for _ in range(width)]
        names: dict[str, int] = {}
        for name, _ in taken:
            names[name] = names.get(name, 0) + 1
        self.write(at=after, counted=sum(count for _, count in taken), columns=names)


def main(ledger_file: str, words: list[str]) -> int:
    """Train with the ledger in place."""
    ledger = Ledger(os.open(ledger_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    pool_next, learner_step = RayPool.next, Learner.step

    def audited_next(self: RayPool, *arguments: Any) -> Any:
        unroll = pool_next(self, *arguments)
        ledger.arrived(unroll)
        return unroll

    def audited_step(self: Learner, batch: Any) -> dict[str, float]:
        before = self.updates, self.steps
        metrics = learner_step(self, batch)
        ledger.trained(before, (self.updates, self.steps), len(batch.weights_version))
        return metrics

    RayPool.next, Learner.step = audited_next, audited_step  # type: ignore[method-assign]
    return train.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
