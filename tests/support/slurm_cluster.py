"""Slurm of the tests' own: real daemons of Debian's packages, three nodes of this machine, as root.

munged, slurmctld and a slurmd a node run from a temporary folder, on ports of loopback that were
free. Jobs are in control groups of their nodes' names, which are random. Nothing of it outlives
:func:`slurm_cluster`: what carries its mark in the environment is killed, and its groups are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import hygiene
from require import need

__all__ = ["SlurmCluster", "slurm_cluster"]

_DAEMONS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun")
_MARK = "FIBER_TEST_SLURM"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE = 60.0
_MARK_OF_CI = {name: os.environ[name] for name in ("CI_STAGE",) if name in os.environ}
_CONF = """\
ClusterName=fiber
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=200
SlurmdParameters=config_overrides
{processes}
JobAcctGatherType=jobacct_gather/none
KillWait={kill_wait}
MinJobAge={remembered}
SlurmdTimeout=15
SlurmctldTimeout=30
MessageTimeout=10
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MaxArraySize=2001
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0,default_queue_depth=1000
GresTypes=gpu
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=one Nodes={first} MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs=32 RealMemory=16000 {more}State=UNKNOWN"
)
_GROUPS = Path("/sys/fs/cgroup")


class SlurmCluster:
    """A cluster of three nodes.

    Args:
        folder: for its files.
        kill_wait: seconds from SIGTERM to SIGKILL of what is cancelled.
        remembered: seconds for which the controller knows of ended jobs.
    """

    def __init__(self, folder: Path, *, kill_wait: int = 15, remembered: int = 300) -> None:
        self.folder = folder
        self.kill_wait = kill_wait
        self.conf = folder / "slurm.conf"
        tag = secrets.token_hex(2)
        self.nodes = tuple(f"n{number}-{tag}" for number in (1, 2, 3))
        self._remembered = remembered
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which Slurm's commands ask this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    @property
    def shared(self) -> Path:
        """Folder of jobs' files, which all nodes see."""
        return self.folder / "shared"

    @property
    def program_environ(self) -> dict[str, str]:
        """Variables by which a program uses this cluster."""
        return {
            **self.environ,
            "FIBER_BACKEND": "slurm",
            "FIBER_SLURM_ADDRESS": "127.0.0.1",
            "FIBER_SLURM_FOLDER": str(self.shared),
        }

    # -- the daemons

    def start(self) -> None:
        """Start everything; returns when all nodes are idle."""
        self._configure()
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        words = [
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--{what}={self.folder}/munge/{what.partition('-')[0]}" for what in _OF_MUNGED),
        ]
        self._spawn("munged", *words)
        _until((self.folder / "munge" / "socket").exists, "munged listens")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        _until(lambda: set(self._states().values()) == {"idle"}, "all nodes are idle", self._told)

    def start_controller(self) -> None:
        """Start slurmctld; returns when it answers."""
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        _until(lambda: self.ask("scontrol", "ping") is not None, "slurmctld answers", self._told)
        # a test that has it started again leaves it to the cluster
        hygiene.restarted.add(self._daemons["slurmctld"].pid)

    def stop_controller(self) -> None:
        """Stop slurmctld, as for an upgrade; jobs go on."""
        self._end("slurmctld")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))
        hygiene.restarted.add(self._daemons[node].pid)

    def lose_node(self, node: str) -> None:
        """Kill a node's slurmd and all that runs there, as the loss of its power does."""
        with self._daemons.pop(node) as daemon:
            daemon.kill()
        self.kill_processes(node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def bring_back(self, node: str) -> None:
        """Start a node that was lost."""
        self.start_node(node)
        self.resume(node)

    def resume(self, node: str) -> None:
        """Have a node that is down take jobs again."""

        def is_up() -> bool:
            return self._states().get(node) in {"idle", "mixed", "allocated"}

        _until(
            # the cluster takes one back by itself, too
            lambda: (
                self.ask("scontrol", "update", f"nodename={node}", "state=resume") is not None
                or is_up()
            ),
            f"{node} is back",
            self._told,
        )
        _until(is_up, f"{node} is idle", self._told)

    def kill_processes(self, node: str) -> None:
        """Kill all that runs in jobs on a node, also where Slurm knows it no longer."""
        for pid in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_stepd(self, job: str) -> None:
        """Kill the slurmstepd of a job's script, without which nothing of Slurm's reaches it."""
        (found,) = [
            one
            for one in psutil.process_iter(["cmdline"])
            if f"slurmstepd: [{job}.batch]" in " ".join(one.info["cmdline"] or ())
        ]
        found.kill()

    def stop(self) -> list[str]:
        """End everything; returns what jobs were there, a line each."""
        left = []
        if "slurmctld" in self._daemons:
            left = (self.ask("squeue", "--noheader", "--format=%i %j %T") or "").splitlines()
            self.ask("scancel", "--full", "--signal=KILL", *(line.split()[0] for line in left))
            self.ask("scancel", "--user=root")
            # what they write at their ends goes to folders that are removed
            with contextlib.suppress(AssertionError):
                _until(lambda: not self.ask("squeue", "--noheader"), "no job is there")
        for name in reversed(self._daemons):
            self._end(name, forget=False)
        self._daemons.clear()
        for pid in _marked(str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _until(lambda: not _marked(str(self.folder)), "no process is left")
        for node in self.nodes:
            for top in _GROUPS.glob(f"*/slurm_{node}"):
                _remove_group(top)
        return left

    # -- commands

    def run(self, *words: str) -> str:
        """What a command of Slurm's writes.

        Raises:
            AssertionError: it failed; the text is its own.
        """
        done = self._call(words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, *words: str) -> str | None:
        """What a command writes; None where it failed."""
        done = self._call(words)
        return done.stdout if done.returncode == 0 else None

    @contextlib.contextmanager
    def allocated(self, *words: str) -> Iterator[str]:
        """Id of an allocation with these options of salloc; it ends with the context."""
        for node, state in self._states().items():
            # Slurm takes one out of service where it could not end a job's processes in time
            if state.startswith(("down", "drain")):
                self.resume(node)
        # one that was killed while it waits would leave its request to Slurm
        done = self._call(("salloc", "--no-shell", f"--immediate={_PATIENCE:.0f}", *words))
        found = re.search(r"Granted job allocation (\d+)", done.stderr)
        assert found is not None, f"{done.stderr}{self._told()}"
        try:
            yield found[1]
        finally:
            # a controller that was just started may not take it at once
            _until(
                lambda: self.ask("scancel", found[1]) is not None,
                f"job {found[1]} is cancelled",
                self._told,
            )

    def requests(self) -> dict[str, int]:
        """How many requests of each type slurmctld was sent so far, by sdiag."""
        by_type = self.run("sdiag").partition("by message type")[2].partition("by user")[0]
        counts = re.findall(r"([A-Z]\w+)\s*\(\s*\d+\)\s*count:(\d+)", by_type)
        return {name: int(count) for name, count in counts}

    # -- within

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(1 + len(self.nodes))
        self.conf.write_text(
            _CONF.format(
                host=host,
                port=ports[0],
                folder=self.folder,
                kill_wait=self.kill_wait,
                remembered=self._remembered,
                processes=_processes(),
                names=",".join(self.nodes),
                first=self.nodes[0],
                nodes="\n".join(
                    _NODE.format(
                        name=name,
                        host=host,
                        port=port,
                        more="Gres=gpu:2 " if name == self.nodes[0] else "",
                    )
                    for name, port in zip(self.nodes, ports[1:], strict=True)
                ),
            )
        )
        version = 1 if (_GROUPS / "freezer").is_dir() else 2
        (self.folder / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v{version}\nConstrainRAMSpace={_limits_memory()}\n"
        )
        # a count without files makes the nodes invalid
        (self.folder / "gres.conf").write_text(
            "".join(
                f"NodeName={self.nodes[0]} Name=gpu File={path}\n"
                for path in ("/dev/null", "/dev/zero")
            )
        )

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # with the mark of CI, too, which ends what is left of a run that was cut off
                env={"PATH": _PATH, _MARK: str(self.folder), **_MARK_OF_CI, **self.environ},
                start_new_session=True,
            )

    def _end(self, name: str, *, forget: bool = True) -> None:
        daemon = self._daemons[name]
        daemon.terminate()
        try:
            daemon.wait(_PATIENCE / 4)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if forget:
            del self._daemons[name]

    def _call(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **self.environ, "PATH": _PATH}
        return subprocess.run(words, capture_output=True, text=True, env=environ, check=False)

    def _states(self) -> dict[str, str]:
        lines = (self.ask("sinfo", "--noheader", "--Node", "--format=%N %T") or "").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if line}

    def processes(self, node: str) -> list[int]:
        """Processes of the jobs on a node: those whose control group is the node's."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                if f"slurm_{node}" in path.read_text():
                    found.append(int(path.parent.name))
        return found

    def _told(self) -> str:
        """Jobs, nodes and why they are out of service; last lines of what the daemons wrote."""
        asked = (("squeue",), ("sinfo", "--Node"), ("sinfo", "--list-reasons"))
        told = [self.ask(*words) or f"{words} failed" for words in asked]
        for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            told += [f"-- {path.name}", *path.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(told)


_OF_MUNGED = ("socket", "pid-file", "log-file", "seed-file")


@contextlib.contextmanager
def slurm_cluster(**settings: int) -> Iterator[SlurmCluster]:
    """Make a cluster, or skip where none can be made; end it afterwards."""
    need("slurm", _why_not())
    # short: sockets lie below it
    folder = Path(tempfile.mkdtemp(prefix=f"sl-{os.getpid():x}-"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root can start its daemons"
    missing = [name for name in _DAEMONS if not shutil.which(name, path=_PATH)]
    if missing:
        packages = "munge slurm-client slurmctld slurmd"
        return f"there is no {', '.join(missing)}; apt-get install {packages}"
    return None


def _processes() -> str:
    """How jobs' processes are known: by control groups, where this machine lets us make some."""
    probe = _GROUPS / "freezer" / f"fiber-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"
    return "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"


def _limits_memory() -> str:
    return "yes" if (_GROUPS / "memory" / "memory.limit_in_bytes").exists() else "no"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _marked(folder: str) -> list[int]:
    wanted = f"{_MARK}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # they end meanwhile
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _remove_group(top: Path) -> None:
    for path in sorted(top.rglob("*/"), key=lambda one: len(one.parts), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        top.rmdir()


def _until(holds: object, what: str, told: object = lambda: "") -> None:
    assert callable(holds)
    assert callable(told)
    until = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < until, f"not within {_PATIENCE:g} s: {what}\n{told()}"
        time.sleep(0.05)
