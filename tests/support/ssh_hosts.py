"""Hosts for ssh: real sshds in network namespaces joined by a bridge, with links to cut.

Each host has its own network, hostname, home and host key; they share this machine's files and
processes. The bridge has a namespace of its own too, where no firewall of this machine applies.
Needs root, ``sshd`` and ``ip``; all names and addresses are of this world alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from netns import command, free_subnet, ip, kill, sweep, sweep_folders
from require import need

_SSHD = "/usr/sbin/sshd"
_TIMEOUT = 15.0

_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {keys}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding {forwarding}
MaxStartups 100
PrintMotd no
UseDNS no
LogLevel VERBOSE
SetEnv XDG_RUNTIME_DIR={directory}/run
Subsystem sftp internal-sftp
"""

# file system of a host: its own passwd, so its own home, and empty folders over the hidden ones
_ENTER = """\
mount --make-rprivate /
hostname "$1"
mount --bind "$2" /etc/passwd
shift 2
while [ "$1" != -- ]; do mount -t tmpfs -o size=1m hidden "$1"; shift; done
shift
exec "$@"
"""


def why_no_hosts() -> str | None:
    """The requirement of such hosts that this machine lacks; None where it has all."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program, package in (
        ("iptables", "iptables"),
        (_SSHD, "openssh-server"),
        ("ip", "iproute2"),
        ("unshare", "util-linux"),
    ):
        if shutil.which(program) is None:
            return f"there is no {program}; apt-get install {package}"
    name = f"fbs{os.getpid():x}t"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"network namespaces cannot be made here: {done.stderr.strip()}"
    ip("netns", "del", name)
    return None


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
    #: folders of this machine that are empty on it
    hidden: tuple[str, ...] = ()
    #: the port of its sshd
    port: int = 22
    sshd: subprocess.Popen[bytes] | None = None

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
        command += [*self.hidden, "--", _SSHD, "-D", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "sshd.log").open("ab") as log:
            self.sshd = subprocess.Popen(
                [*command, "-e"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=1).close()
            except OSError as error:
                if time.monotonic() > deadline or self.sshd.poll() is not None:
                    words = (self.directory / "sshd.log").read_text()[-2000:]
                    msg = f"sshd of {self.name} does not answer ({error}): {words}"
                    raise RuntimeError(msg) from error
                # there is no event for an sshd that listens
                time.sleep(0.02)
            else:
                return

    def kill_sshd(self, *, sessions: bool = True) -> None:
        """Kill its sshd, and those of its sessions, without closing connections."""
        assert self.sshd is not None
        if sessions:
            for pid in self.pids():
                if command(pid).startswith("sshd: "):
                    kill(pid)
        self.sshd.kill()
        self.sshd.wait()

    def drop_sessions(self) -> None:
        """Kill the sshds of open connections; new ones are accepted."""
        for pid in self.pids():
            # the one that listens is "sshd: /usr/sbin/sshd …"
            if command(pid).startswith("sshd: ") and _SSHD not in command(pid):
                kill(pid)

    def cut(self) -> None:
        """Cut its link: packets in both directions are dropped, without errors."""
        switch, port = self.port_of_switch
        ip("-n", switch, "link", "set", port, "down")

    def restore(self) -> None:
        """Undo :meth:`cut`."""
        switch, port = self.port_of_switch
        ip("-n", switch, "link", "set", port, "up")

    def isolate(self) -> None:
        """Drop packets between it and other isolated hosts, without errors."""
        switch, port = self.port_of_switch
        ip("-n", switch, "link", "set", port, "type", "bridge_slave", "isolated", "on")

    def rejoin(self) -> None:
        """Undo :meth:`isolate`."""
        switch, port = self.port_of_switch
        ip("-n", switch, "link", "set", port, "type", "bridge_slave", "isolated", "off")

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
        return [int(word) for word in ip("netns", "pids", self.namespace).split()]

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
    links: list[str] = attrs.field(factory=list)
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

    def make(self, names: Sequence[str], hidden: Sequence[str]) -> None:
        """Make the network and the hosts."""
        tag = f"fbs{os.getpid():x}"
        _keygen(self.key)
        keys = self.directory / "authorized_keys"
        keys.write_bytes(self.key.with_suffix(".pub").read_bytes())
        subnet = free_subnet()
        self.address = f"{subnet}.1"
        switch = self._namespace(f"{tag}s")
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        self._link(f"{tag}m", switch, "uplink")
        ip("addr", "add", f"{self.address}/24", "dev", f"{tag}m")
        ip("link", "set", f"{tag}m", "up")
        for number, name in enumerate(names):
            namespace = self._namespace(f"{tag}h{number}")
            port = f"p{number}"
            address = f"{subnet}.{11 + number}"
            ip(
                "-n",
                switch,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
            ip("-n", namespace, "link", "set", "lo", "up")
            host = SshHost(
                name, address, namespace, (switch, port), self.directory / name, tuple(hidden)
            )
            self.hosts.append(host)
            _furnish(host, keys)
            host.start()
        self.known_hosts.write_text("".join(f"{h.known_hosts_line}\n" for h in self.hosts))

    def _namespace(self, name: str) -> str:
        ip("netns", "add", name)
        self.namespaces.append(name)
        return name

    def _link(self, local: str, switch: str, port: str) -> None:
        ip("link", "add", local, "type", "veth", "peer", "name", port, "netns", switch)
        self.links.append(local)
        ip("-n", switch, "link", "set", port, "master", "br0", "up")

    def jobs(self) -> list[str]:
        """Processes of all hosts except for sshd's, as ``HOST: PID: COMMAND``."""
        return [f"{host.name}: {job}" for host in self.hosts for job in host.jobs()]

    def close(self) -> list[str]:
        """Remove hosts and network; returns the processes of jobs that were left."""
        deadline = time.monotonic() + _TIMEOUT
        left = self.jobs()
        while left and time.monotonic() < deadline:
            # there is no event for the end of processes that are no children
            time.sleep(0.05)
            left = self.jobs()
        for host in self.hosts:
            host.kill_all()
        for link in self.links:
            ip("link", "del", link)
        for name in self.namespaces:
            ip("netns", "del", name)
        return left


@contextlib.contextmanager
def ssh_hosts(*names: str, hidden: Sequence[str] = ()) -> Iterator[SshWorld]:
    """Make hosts, or skip where they cannot be made; remove them at the end.

    Args:
        names: hostnames.
        hidden: folders of this machine that are empty on hosts.
    """
    need("ssh", why_no_hosts())
    sweep()
    sweep_folders()
    # short: Unix sockets lie below it
    directory = Path(tempfile.mkdtemp(prefix=f"fs-{os.getpid():x}-"))
    world = SshWorld(directory)
    try:
        world.make(names, hidden)
        yield world
    finally:
        left = world.close()
        shutil.rmtree(directory, ignore_errors=True)
    if left:
        pytest.fail("left on hosts:\n  " + "\n  ".join(left), pytrace=False)


def _furnish(host: SshHost, keys: Path) -> None:
    host.home.mkdir(parents=True)
    (host.directory / "run").mkdir(mode=0o700)
    _keygen(host.directory / "host_key")
    lines = Path("/etc/passwd").read_text().splitlines()
    fields = next(line for line in lines if line.startswith("root:")).split(":")
    fields[5] = str(host.home)
    others = [line for line in lines if not line.startswith("root:")]
    (host.directory / "passwd").write_text("\n".join([":".join(fields), *others]) + "\n")
    (host.directory / "sshd_config").write_text(
        _CONFIG.format(
            port=host.port,
            address=host.address,
            directory=host.directory,
            keys=keys,
            forwarding="yes",
        )
    )


def _keygen(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
