"""Memory and processor time of a process and all that descend from it, from Linux's /proc."""

import os
from collections import defaultdict
from pathlib import Path

_PARENT, _TIMES = 1, slice(11, 13)
"""Where /proc/PID/stat has the parent, and the ticks in user and system mode, after the command's name."""


def tree_memory(pid: int) -> int:
    """Bytes resident in process `pid` and its descendants, each shared page counted once; 0 where /proc has no answer.

    The proportional set size is summed, so Ray's object store, mapped by all of them, is in the sum once.
    """
    return sum(_proportional_set_size(each) for each in _tree(pid))


def tree_cpu_seconds(pid: int) -> float:
    """Processor seconds that process `pid` and its living descendants have used; 0 where /proc has no answer."""
    ticks = sum(sum(map(int, stat[_TIMES])) for stat in _tree(pid).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> dict[int, list[str]]:
    """Process `pid` and its descendants, with the fields of each one's /proc/PID/stat after the command's name."""
    stats: dict[int, list[str]] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name, in brackets, may hold blanks and brackets of its own.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        stats[int(file.parent.name)] = fields
        children[int(fields[_PARENT])].append(int(file.parent.name))
    tree: dict[int, list[str]] = {}
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        if each in stats:
            tree[each] = stats[each]
            waiting += children[each]
    return tree


def _proportional_set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
