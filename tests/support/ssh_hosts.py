"""Hosts for ssh: real sshds in network namespaces joined by a bridge, with links to cut.

Each host has its own network, hostname, home and host key; they share this machine's files and
processes. The bridge has a namespace of its own too, where no firewall of this machine applies.
Needs root, ``sshd`` and ``ip``; all names and addresses are of this world alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

import waiting
from require import need

_SSHD = "/usr/sbin/sshd"
_TIMEOUT = 15.0

_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {keys}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding yes
MaxStartups 100
PrintMotd no
UseDNS no
LogLevel VERBOSE
SetEnv {environ}
Subsystem sftp internal-sftp
"""

# file system of a host: its own passwd, so its own home
_ENTER = """\
mount --make-rprivate /
hostname "$1"
mount --bind "$2" /etc/passwd
shift 2
exec "$@"
"""


def ip(line: str) -> str:
    """Run ``ip``; returns what it prints.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {line}: {done.stderr.strip()}")
    return done.stdout


def command(pid: int) -> str:
    """The command line of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def kill(pid: int) -> None:
    """SIGKILL to a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _why_not() -> str | None:
    """The requirement of such hosts that this machine lacks; None where it has all."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    packages = {"iptables": "iptables", _SSHD: "openssh-server", "ip": "iproute2"}
    for program, package in {**packages, "unshare": "util-linux"}.items():
        if shutil.which(program) is None:
            return f"there is no {program}; apt-get install {package}"
    name = f"fbs{os.getpid():x}t"
    try:
        ip(f"netns add {name}")
    except RuntimeError as error:
        return f"network namespaces cannot be made here: {error}"
    ip(f"netns del {name}")
    return None


#: of the networks that this process makes: a test may make its own beside those of its session
_numbers = itertools.count()


def _sweep() -> None:
    """Remove what tests left that were killed: names hold the number of their process."""
    for line in ip("netns list").splitlines():
        name = line.split()[0]
        if _is_left(re.fullmatch(r"fbs([0-9a-f]+)w\d+[a-z]\d*", name)):
            # somebody else may sweep at the same time
            with contextlib.suppress(RuntimeError):
                for pid in ip(f"netns pids {name}").split():
                    kill(int(pid))
                ip(f"netns del {name}")
    for folder in Path(tempfile.gettempdir()).glob("fs-*-*"):
        if _is_left(re.fullmatch(r"fs-([0-9a-f]+)-.*", folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left(named: re.Match[str] | None) -> bool:
    return named is not None and not Path(f"/proc/{int(named[1], 16)}").exists()


def _free_subnet() -> str:
    """The first three numbers of addresses that nobody here has."""
    # the range for benchmarks, which no network routes
    taken = ip("-o -4 addr")
    for step in range(256):
        subnet = f"198.18.{(os.getpid() + step) % 256}"
        if f"{subnet}." not in taken:
            return subnet
    raise RuntimeError("all subnets of 198.18.0.0/16 are in use here")


@attrs.define
class SshHost:
    """One host; its sshd runs from :meth:`start` on."""

    #: its hostname
    name: str
    #: its numeric address
    address: str
    #: its network namespace
    namespace: str
    #: the namespace of the bridge and the name of this host's port there
    port_of_switch: tuple[str, str]
    #: its files: home, run directory, host key
    directory: Path
    sshd: subprocess.Popen[bytes] | None = None

    @property
    def clock(self) -> Path:
        """The file with what its time of day is ahead of this machine's, if it may be set."""
        return self.directory / "clock"

    def set_clock(self, seconds: int) -> None:
        """Set its time of day ahead of this machine's, or behind, also for what runs there."""
        # in place, for processes have it in their memory
        with self.clock.open("r+b") as stream:
            stream.write(struct.pack("q", seconds))

    @property
    def home(self) -> Path:
        """Its user's home."""
        return self.directory / "home"

    @property
    def known_hosts_line(self) -> str:
        """Its line for ``known_hosts``."""
        kind, key, *_ = (self.directory / "host_key.pub").read_text().split()
        return f"{self.address} {kind} {key}"

    def start(self) -> None:
        """Start its sshd and wait until it answers."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # it ends with the tests, also if they are killed
        command = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespace]
        command += ["unshare", "--mount", "--uts"]
        command += ["sh", "-euc", _ENTER, "enter", self.name, str(self.directory / "passwd")]
        command += [_SSHD, "-D", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "sshd.log").open("ab") as log:
            self.sshd = subprocess.Popen(
                [*command, "-e"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                socket.create_connection((self.address, 22), timeout=1).close()
            except OSError as error:
                if time.monotonic() > deadline or self.sshd.poll() is not None:
                    words = (self.directory / "sshd.log").read_text()[-2000:]
                    msg = f"sshd of {self.name} does not answer ({error}): {words}"
                    raise RuntimeError(msg) from error
                # there is no event for an sshd that listens
                time.sleep(0.02)
            else:
                return

    def kill_sshd(self) -> None:
        """Kill its sshd, and those of its sessions, without closing connections."""
        assert self.sshd is not None
        self.sshd.kill()
        self.sshd.wait()
        self.drop_sessions()

    def drop_sessions(self) -> None:
        """Kill the sshds of open connections; new ones are accepted."""
        for pid in self.pids():
            # the one that listens is "sshd: /usr/sbin/sshd …"
            if command(pid).startswith("sshd: ") and _SSHD not in command(pid):
                kill(pid)

    def cut(self) -> None:
        """Cut its link: packets in both directions are dropped, without errors."""
        self._set_port("down")

    def restore(self) -> None:
        """Undo :meth:`cut`."""
        self._set_port("up")

    def isolate(self) -> None:
        """Drop packets between it and other isolated hosts, without errors."""
        self._set_port("type bridge_slave isolated on")

    def rejoin(self) -> None:
        """Undo :meth:`isolate`."""
        self._set_port("type bridge_slave isolated off")

    def _set_port(self, words: str) -> None:
        switch, port = self.port_of_switch
        ip(f"-n {switch} link set {port} {words}")

    def refuse_outgoing(self, *, to: str) -> None:
        """Reset connections that it opens to an address, as for hosts outside a NAT."""
        rule = ["-p", "tcp", "-d", to, "--syn", "-j", "REJECT", "--reject-with", "tcp-reset"]
        self._iptables("-A", *rule)

    def allow_outgoing(self) -> None:
        """Undo :meth:`refuse_outgoing`."""
        self._iptables("-F")

    def _iptables(self, action: str, *rule: str) -> None:
        command = ["ip", "netns", "exec", self.namespace, "iptables", action, "OUTPUT", *rule]
        subprocess.run(command, check=True, capture_output=True)

    def pids(self) -> list[int]:
        """Pids of all its processes."""
        return [int(word) for word in ip(f"netns pids {self.namespace}").split()]

    def jobs(self) -> list[str]:
        """Its processes except for sshd's, as ``PID: COMMAND``."""
        found = [(pid, command(pid)) for pid in self.pids()]
        return [f"{pid}: {text}" for pid, text in found if text and not text.startswith("sshd")]

    def kill_all(self) -> None:
        """Kill all its processes, as a power cut does."""
        for pid in self.pids():
            kill(pid)
        if self.sshd is not None:
            self.sshd.wait()


@attrs.define
class SshWorld:
    """Hosts that the tests' own process reaches by ssh, with key, known_hosts and settings."""

    directory: Path
    hosts: list[SshHost] = attrs.field(factory=list)
    #: the address at which hosts see this machine
    address: str = ""
    #: this machine's end of the way there
    link: str = ""
    namespaces: list[str] = attrs.field(factory=list)

    @property
    def key(self) -> Path:
        """Path of the private key that all hosts accept."""
        return self.directory / "user_key"

    @property
    def known_hosts(self) -> Path:
        """Path of the file with the host keys of all hosts."""
        return self.directory / "known_hosts"

    @property
    def hosts_file(self) -> Path:
        """Path of fiber-ssh's hosts file with all hosts."""
        return self.directory / "hosts.ini"

    def environ(self, slots: int = 4) -> dict[str, str]:
        """Environment variables with these hosts and without the user's own configuration."""
        lines = ["[*]", "user = root", f"key = {self.key}", f"python = {sys.executable}"]
        for host in self.hosts:
            lines += ["", f"[{host.name}]", f"address = {host.address}", f"slots = {slots}"]
        self.hosts_file.write_text("\n".join(lines) + "\n")
        config = self.directory / "ssh_config"
        config.write_text(f"Host *\n  UserKnownHostsFile {self.known_hosts}\n")
        return {"FIBER_SSH_HOSTS": str(self.hosts_file), "FIBER_SSH_CONFIG": str(config)}

    def make(self, names: Sequence[str], *, clocks: bool) -> None:
        """Make the network and the hosts, with clocks that can be set if so asked."""
        tag = f"fbs{os.getpid():x}w{next(_numbers)}"
        _keygen(self.key)
        keys = self.directory / "authorized_keys"
        keys.write_bytes(self.key.with_suffix(".pub").read_bytes())
        clock = self.directory / "wall_clock.so" if clocks else None
        if clock is not None:
            source = Path(__file__).with_name("wall_clock.c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", clock, source], check=True)
        subnet = _free_subnet()
        self.address = f"{subnet}.1"
        switch, self.link = self._namespace(f"{tag}s"), f"{tag}m"
        ip(f"-n {switch} link add br0 type bridge")
        ip(f"-n {switch} link set br0 up")
        ip(f"link add {self.link} type veth peer name uplink netns {switch}")
        ip(f"-n {switch} link set uplink master br0 up")
        ip(f"addr add {self.address}/24 dev {self.link}")
        ip(f"link set {self.link} up")
        for number, name in enumerate(names):
            namespace, port = self._namespace(f"{tag}h{number}"), f"p{number}"
            address = f"{subnet}.{11 + number}"
            ip(f"-n {switch} link add {port} type veth peer name eth0 netns {namespace}")
            ip(f"-n {switch} link set {port} master br0 up")
            ip(f"-n {namespace} addr add {address}/24 dev eth0")
            ip(f"-n {namespace} link set eth0 up")
            ip(f"-n {namespace} link set lo up")
            host = SshHost(name, address, namespace, (switch, port), self.directory / name)
            self.hosts.append(host)
            _furnish(host, keys, clock)
            host.start()
        self.known_hosts.write_text("".join(f"{h.known_hosts_line}\n" for h in self.hosts))

    def _namespace(self, name: str) -> str:
        ip(f"netns add {name}")
        self.namespaces.append(name)
        return name

    def jobs(self) -> list[str]:
        """Processes of all hosts except for sshd's, as ``HOST: PID: COMMAND``."""
        return [f"{host.name}: {job}" for host in self.hosts for job in host.jobs()]

    def close(self) -> list[str]:
        """Remove hosts and network; returns the processes of jobs that were left."""
        # an agent that a test has not taken leave of ends with its lease, which is of 20 s
        left = waiting.left(self.jobs, 20.0 + _TIMEOUT, pause=0.05)
        for host in self.hosts:
            host.kill_all()
        if self.link:
            ip(f"link del {self.link}")
        for name in self.namespaces:
            ip(f"netns del {name}")
        return left


@contextlib.contextmanager
def ssh_hosts(*names: str, clocks: bool = False) -> Iterator[SshWorld]:
    """Make hosts with these names, or skip where they cannot be made; remove them at the end.

    Args:
        names: their hostnames.
        clocks: whether :meth:`SshHost.set_clock` is called.
    """
    need("ssh", _why_not())
    if clocks:
        need("gcc", None if shutil.which("gcc") else "there is none; apt-get install gcc")
    _sweep()
    # short: Unix sockets lie below it
    directory = Path(tempfile.mkdtemp(prefix=f"fs-{os.getpid():x}-"))
    world = SshWorld(directory)
    try:
        world.make(names, clocks=clocks)
        yield world
    finally:
        left = world.close()
        shutil.rmtree(directory, ignore_errors=True)
    if left:
        pytest.fail("left on hosts:\n  " + "\n  ".join(left), pytrace=False)


def _furnish(host: SshHost, keys: Path, clock: Path | None) -> None:
    host.home.mkdir(parents=True)
    (host.directory / "run").mkdir(mode=0o700)
    _keygen(host.directory / "host_key")
    lines = Path("/etc/passwd").read_text().splitlines()
    fields = next(line for line in lines if line.startswith("root:")).split(":")
    fields[5] = str(host.home)
    others = [line for line in lines if not line.startswith("root:")]
    (host.directory / "passwd").write_text("\n".join([":".join(fields), *others]) + "\n")
    environ = {"XDG_RUNTIME_DIR": f"{host.directory}/run"}
    if clock is not None:
        host.clock.write_bytes(bytes(8))
        environ.update(LD_PRELOAD=str(clock), WALL_CLOCK=str(host.clock))
    (host.directory / "sshd_config").write_text(
        _CONFIG.format(
            address=host.address,
            directory=host.directory,
            keys=keys,
            environ=" ".join(f"{name}={value}" for name, value in environ.items()),
        )
    )


def _keygen(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
