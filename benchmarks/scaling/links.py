"""Links with latency between emulated hosts, for kernels without tc netem: a process that forwards IP packets late.

Every host has a TUN device; what it sends arrives at this process, which delivers it after the latency of the link.
The bandwidth is that of the machine. Packets have 9000 bytes at most, as Ethernet's jumbo frames.
"""

import ctypes
import fcntl
import multiprocessing
import os
import select
import struct
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

MTU = 9000
QUEUE = 20_000
"""Packets that wait for a host; a real switch would drop earlier."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_DESTINATION = 19
"""Byte of an IPv4 header that is the last one of the destination's address."""


class Links:
    """Links between all hosts; `latency` (one way, seconds) may be set at any time.

    Args:
        hosts: process of each host's network namespace, by the last byte of its address.
        network: the first three bytes of all addresses.
    """

    def __init__(self, hosts: Mapping[int, str], network: str) -> None:
        self._latency: Any = multiprocessing.RawValue("d", 0.0)
        devices = {number: _device(f"eng{os.getpid() % 10**6}-{number}") for number in hosts}
        for number, process in hosts.items():
            name, inside = f"eng{os.getpid() % 10**6}-{number}", ["nsenter", "-t", process, "-n", "ip"]
            _do("ip", "link", "set", name, "netns", process)
            _do(*inside, "link", "set", name, "name", "eth0")
            _do(*inside, "link", "set", "eth0", "mtu", str(MTU), "txqueuelen", str(QUEUE), "up")
            _do(*inside, "address", "add", f"{network}.{number}/24", "dev", "eth0")
            _do(*inside, "route", "add", "default", "dev", "eth0")
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_forward, args=(devices, self._latency), daemon=True)
        self._process.start()
        for device in devices.values():
            os.close(device)

    @property
    def latency(self) -> float:
        return self._latency.value

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._latency.value = seconds

    def close(self) -> None:
        """Cut all links."""
        self._process.kill()
        self._process.join()


def _device(name: str) -> int:
    """A new TUN device's file."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _forward(devices: Mapping[int, int], latency: Any) -> None:
    """Deliver packets late, forever."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, 9)
    libc.prctl(_PR_SET_TIMERSLACK, 1000)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))  # a link does not wait for a core
    files, waiting = list(devices.values()), deque[tuple[float, int, bytes]]()
    while True:
        left = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        ready, _, _ = select.select(files, [], [], left)
        due = time.monotonic() + latency.value
        for file in ready:
            for _ in range(64):
                try:
                    packet = os.read(file, MTU + 100)
                except BlockingIOError:
                    break
                if packet[0] >> 4 == 4 and packet[_DESTINATION] in devices:
                    waiting.append((due, devices[packet[_DESTINATION]], packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, file, packet = waiting.popleft()
            try:
                os.write(file, packet)
            except OSError:
                continue  # the host is gone or its queue is full


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
