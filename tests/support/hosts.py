"""Hosts of one's own on one machine: each with its own processes, network address, name, /tmp, /dev/shm and home.

A host is a process in namespaces of its own (`unshare`), with an ssh server if wanted. The first host is the
operator's: it has no server, but the bridge that joins all of them. Nothing of it is visible outside, and all of it
ends with its processes, so nothing can be left behind.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fresh_venv import make_venv

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = "/srv"
"""Home directory of a host's only user."""
NETWORK = "10.77.0"
TOOLS = ("setpriv", "unshare", "nsenter", "ip", "mount", "bash")
SSH_TOOLS = ("ssh", "ssh-keygen", "sshd", "rsync")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The first process of a host; it also buries the orphans of all others.
_INIT = """
hostname "$NAME"
mount --bind "$FILES/home" /srv
mount --bind "$FILES/passwd" /etc/passwd
mount --bind "$FILES/hosts" /etc/hosts
for place in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/sshd
ip link set lo up
[ -z "$SERVER" ] || /usr/sbin/sshd -f /srv/.ssh/sshd_config -E /srv/sshd.log
touch /srv/ready
while sleep 1; do :; done
"""
_SSHD = f"""
HostKey {HOME}/.ssh/id
AuthorizedKeysFile {HOME}/.ssh/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
"""


def why_not(ssh: bool = True) -> str:
    """Why this machine cannot have such hosts, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, for namespaces"
    missing = [tool for tool in TOOLS + SSH_TOOLS * ssh if shutil.which(tool, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: iproute2 openssh-server openssh-client rsync)"
    hidden = [
        place for place in (ROOT, sys.prefix, sys.base_prefix) if str(place).startswith(("/tmp/", "/run/", "/srv/"))
    ]
    if hidden:
        return f"{hidden[0]} is in a directory that every host has its own of"
    tried = subprocess.run(
        ["unshare", "-muinpf", "--mount-proc", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no namespaces or no bridges: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """One host; `run` runs a command on it."""

    def __init__(self, name: str, number: int, files: Path, *, server: bool) -> None:
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.home = files / "home"
        self.environment = {"HOME": HOME, "PATH": f"{HOME}/engram-venv/bin:{PATH}", "USER": "root", "TERM": "dumb"}
        """Of the commands that `run` runs."""
        environment = {"NAME": name, "FILES": str(files), "SERVER": "yes" if server else "", "PATH": PATH}
        # Should the test die, its hosts die with it.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "-muinpf", "--kill-child", "--mount-proc"]
        command += ["bash", "-euc", _INIT]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (self.home / "ready").exists():
            late = self._process.poll() is not None or time.monotonic() > deadline
            assert not late, f"host {name} does not start"
            time.sleep(0.05)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self.init = children.split()[0]

    def enter(self, *namespaces: str) -> list[str]:
        """The beginning of a command that runs in this host's namespaces."""
        return ["nsenter", "-t", self.init, *(namespaces or ("-m", "-u", "-i", "-n", "-p"))]

    def run(self, command: str, timeout: float = 600, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a shell command in the home directory, as a login would."""
        done = subprocess.run(
            [*self.enter(), "bash", "-c", f"cd {HOME}; {command}"],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        assert not (check and done.returncode), f"{self.name}: {command}\n{done.stdout}"
        return done

    def start(self, command: str) -> "subprocess.Popen[str]":
        """Start a shell command in the home directory, with its output in a pipe."""
        words = [*self.enter(), "bash", "-c", f"cd {HOME}; {command}"]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=self.environment, text=True, stdout=pipe, stderr=subprocess.STDOUT)

    def commands(self) -> list[str]:
        """The command lines of the host's processes."""
        return self.run("ps -eo args").stdout.splitlines()[1:]

    def stop(self) -> None:
        """End the host with all its processes."""
        self._process.kill()  # --kill-child passes it on, and with its first process a host ends
        self._process.wait()


class Hosts:
    """An operator's host and `count` others, joined by a bridge; use it in a `with` statement.

    Args:
        count: of the other hosts.
        ssh: whether they have ssh servers and a virtual environment without engram, as machines before `ray up`.
    """

    def __init__(self, count: int, ssh: bool = True) -> None:
        self._ssh = ssh
        self._names = ["operator", *(f"host{number}" for number in range(1, count + 1))]

    def __enter__(self) -> "Hosts":
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-hosts-")))
            hosts: list[Host] = []
            for number, name in enumerate(self._names, 1):
                files = _files(folder / name, self._names, self._ssh)
                hosts.append(Host(name, number, files, server=self._ssh and number > 1))
                stack.callback(hosts[-1].stop)
            self.operator, self.hosts = hosts[0], hosts[1:]
            self._connect()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def set_link(self, host: Host, state: str) -> None:
        """Set a host's link "down", so that whatever is sent to it or by it is lost, or "up"."""
        _do(*self.operator.enter("-n"), "ip", "link", "set", host.name, state)

    def _connect(self) -> None:
        """A bridge in the operator's network, and from it a cable to each host."""
        inside = self.operator.enter("-n")
        _do(*inside, "ip", "link", "add", "br0", "type", "bridge")
        _do(*inside, "ip", "address", "add", f"{self.operator.address}/24", "dev", "br0")
        _do(*inside, "ip", "link", "set", "br0", "up")
        for host in self.hosts:
            _do(*inside, "ip", "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.init)
            _do(*inside, "ip", "link", "set", host.name, "master", "br0", "up")
            _do(*host.enter("-n"), "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            _do(*host.enter("-n"), "ip", "link", "set", "eth0", "up")
            _do(*host.enter("-n"), "ip", "route", "add", "default", "via", self.operator.address)


def _files(folder: Path, names: Sequence[str], ssh: bool) -> Path:
    """A host's home and its lists of users and hosts; all hosts share one key, made for them."""
    home = folder / "home"
    home.mkdir(parents=True)
    if ssh:
        _key(home, folder.parent / "id")
        _python(home)
    users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    rows = [[*user[:5], HOME, "/bin/bash"] if user[0] == "root" else user for user in users]
    (folder / "passwd").write_text("".join(":".join(row) + "\n" for row in rows))
    lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{number} {name}" for number, name in enumerate(names, 1))]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    return folder


def _key(home: Path, key: Path) -> None:
    """The ssh server's settings and the key of all hosts."""
    (home / ".ssh").mkdir()
    if not key.exists():
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    for name in ("id", "id.pub"):
        shutil.copy(key.with_name(name), home / ".ssh" / name)
    (home / ".ssh" / "sshd_config").write_text(_SSHD)


def _python(home: Path) -> None:
    """Python as the operator's, with Ray's command; pip has nothing to download."""
    make_venv(home / "engram-venv")
    ray = home / "engram-venv" / "bin" / "ray"
    ray.write_text(f"#!{HOME}/engram-venv/bin/python\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text("[global]\nno-index = true\nno-build-isolation = false\n")
    (home / ".bashrc").write_text("")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
