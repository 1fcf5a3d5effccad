"""Memory of a process and all that descend from it, from Linux's /proc."""

from collections import defaultdict
from pathlib import Path


def tree_memory(pid: int) -> int:
    """Bytes resident in process `pid` and its descendants, each shared page counted once; 0 where /proc has no answer.

    The proportional set size is summed, so Ray's object store, mapped by all of them, is in the sum once.
    """
    children = _children()
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        total += _proportional_set_size(each)
        waiting += children[each]
    return total


def _children() -> defaultdict[int, list[int]]:
    """Child processes by parent, of all processes."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name, in brackets, may hold blanks and brackets of its own.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended while we looked
        children[parent].append(int(entry.parent.name))
    return children


def _proportional_set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
