"""Controller (*conductor*) of one run of ``mpirun``, from the start of its members to its end.

Apart from ``run``, which is the command with its streams and signals: a run can be led without
them.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from fiber._ring.mpi import messages
from fiber._ring.mpi.arguments import LAUNCHER, RunSpec
from fiber._ring.mpi.crew import Event, Lost, Need
from fiber._ring.mpi.hosts import discover_script, hostfile, own_addresses
from fiber._ring.mpi.implementations import (
    Family,
    RunFacts,
    Stack,
    arguments,
    environment,
    member_environment,
    overridable,
    recognise,
)
from fiber._ring.mpi.networks import Networks, choose, targets
from fiber._ring.mpi.ranks import wrapped
from fiber._ring.mpi.station import AGENT
from fiber._ring.mpi.timing import MpiTiming
from fiber._ring.mpi.vigil import Begin, Instruction, Verdict, Vigil
from fiber.exceptions import FiberError

__all__ = ["LAUNCHER", "Conductor", "Stations", "Stopped"]

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_HOSTFILES = {True: "hostfile", False: "hostfile.hydra"}
#: where the operator's containers have these files, and commands in manifests look for them
_OPERATORS = "/etc/mpi/"


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A signal came before mpirun was started.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stations(Protocol):
    """What a conductor needs of a crew."""

    def start(self, jobs: Mapping[tuple[str, ...], Need]) -> None:
        """Start jobs, each with the stations that it is named by."""

    def tell(self, name: str, message: messages.ToStation) -> None:
        """Tell a station something."""

    def get(self, until: float | None) -> Event | None:
        """The next event, or None after a time on the monotonic clock."""

    def waits_for(self, name: str) -> str:
        """Why a station is not up yet."""


class Conductor:
    """One run.

    Args:
        plan: what is to be done.
        stations: those who do it.
        output: called with 1 or 2 and what mpirun wrote.
        timing: durations of the run.
    """

    def __init__(
        self,
        plan: RunSpec,
        stations: Stations,
        *,
        output: Callable[[int, bytes], None],
        timing: MpiTiming,
    ) -> None:
        self._plan, self._stations, self._timing = plan, stations, timing
        self._output = output
        #: set once mpirun is there, or never will be
        self.started = threading.Event()
        self._names = (LAUNCHER, *(host.name for host in plan.hosts))
        self._up: dict[str, messages.Hello] = {}
        self._dialled: dict[str, frozenset[tuple[str, str]]] = {}
        self._renamed: dict[str, bool] = {}
        #: members by the addresses that Hydra knows them by
        self._called: dict[str, str] = {}
        self._folder = ""
        self._networks: Networks | None = None
        #: what our own commands wrote, and how they ended
        self._wrote: dict[int, bytearray] = {}
        self._over: dict[int, int | str] = {}
        # agents' calls by the member that has their command
        self._routes: dict[int, str] = {}
        self._call = 0
        self._mpirun: int | None = None
        self._vigil: Vigil | None = None

    def run(self) -> Verdict:
        """Do it; how it ended.

        Raises:
            FiberError: mpirun was not started, with the reason.
        """
        try:
            self._gather()
            self._networks = self._find_networks()
            self._lead()
            stack = self._recognise()
            self._part_hosts(stack)
            return self._attend(stack, self._program())
        finally:
            self.started.set()

    def feed(self, data: bytes) -> None:
        """Something for mpirun's standard input; empty data ends it."""
        if self._mpirun is not None:
            self._stations.tell(LAUNCHER, messages.Input(self._mpirun, data))

    # -- before mpirun

    def _gather(self) -> None:
        plan = self._plan
        jobs = plan.jobs()
        self._stations.start(jobs)
        deadline = time.monotonic() + plan.start_timeout
        if not self._until(lambda: len(self._up) == len(self._names), deadline):
            # a job's stations come together
            missing = [names[-1] for names in jobs if not self._up.keys() >= set(names)]
            told = "; ".join(f"{name}: {self._stations.waits_for(name)}" for name in missing[:4])
            msg = (
                f"{len(missing)} of {len(jobs)} jobs were not there within "
                f"{plan.start_timeout:g} s, so none is used: {told}"
            )
            raise FiberError(msg)

    def _find_networks(self) -> Networks:
        for name in self._names:
            found = targets(name, self._ordered(), self._plan.token)
            self._stations.tell(name, messages.Probe(found))
        self._expect(lambda: len(self._dialled) == len(self._names), "tell whom they can reach")
        return choose(self._ordered(), self._dialled)

    def _ordered(self) -> dict[str, messages.Hello]:
        return {name: self._up[name] for name in self._names}

    def _lead(self) -> None:
        hosts = self._plan.hosts
        assert self._networks is not None
        chosen = self._networks.chosen
        addresses = own_addresses(hosts, {name: found.address for name, found in chosen.items()})
        self._called = {address: name for name, address in addresses.items()}
        files = {
            _HOSTFILES[True]: hostfile(hosts, open_mpi=True),
            _HOSTFILES[False]: hostfile(hosts, open_mpi=False, addresses=addresses),
        }
        files["discover_hosts.sh"] = discover_script(hosts)
        self._stations.tell(LAUNCHER, messages.BecomeLauncher(files))
        self._expect(lambda: bool(self._folder), "open the launcher's door")

    def _recognise(self) -> Stack:
        program = self._plan.mpirun
        code, said = self._ask((program, "--version"))
        if isinstance(code, str):
            where = self._up[LAUNCHER].host
            msg = f"{code} (on {where}); install an MPI there, or name its mpirun with --mpirun"
            raise FiberError(msg)
        return recognise(program, said)

    def _part_hosts(self, stack: Stack) -> None:
        """Members of one host get names of their own where the stack tells hosts by these."""
        plan = self._plan
        if not self._shared_names() or stack.family is not Family.OPEN_MPI_PRRTE:
            return
        for host in plan.hosts:
            self._stations.tell(host.name, messages.SetHostname())
        self._expect(lambda: len(self._renamed) == len(plan.hosts), "tell their host's name")
        if not all(self._renamed.values()) and plan.count > len(plan.hosts):
            msg = (
                f"{stack} tells members by their host's name, and those of this run are on one host "
                f"({self._up[LAUNCHER].host}), whose user may not give them others; use one member, "
                f"with --slots {plan.count}"
            )
            raise FiberError(msg)

    def _shared_names(self) -> set[str]:
        """The names of hosts that several members have."""
        names = [self._up[host.name].host for host in self._plan.hosts]
        return {name for name in names if names.count(name) > 1}

    def _program(self) -> tuple[str, ...]:
        """The program; one of Python's ends all ranks when it raises, where mpi4py is there."""
        program = self._plan.program
        is_python = _PYTHON.fullmatch(PurePosixPath(program[0]).name) is not None
        is_script = len(program) > 1 and not program[1].startswith("-")
        if not (self._plan.count and is_python and is_script):
            return program
        # else the others wait for ever for a rank that has raised
        code, _ = self._ask((program[0], "-c", "import mpi4py.run"))
        return (program[0], "-m", "mpi4py", *program[1:]) if code == 0 else program

    def _ask(self, argv: tuple[str, ...]) -> tuple[int | str, str]:
        """Run something on the launcher; its exit code or why there is none, and what it wrote."""
        call = self._run(argv, {})
        self._expect(lambda: call in self._over, f"run {argv[0]}")
        return self._over[call], self._wrote[call].decode(errors="replace")

    def _run(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        self._call += 1
        self._wrote[self._call] = bytearray()
        self._stations.tell(
            LAUNCHER,
            messages.Run(call=self._call, argv=tuple(argv), env=env, overridable=overridable(env)),
        )
        return self._call

    # -- mpirun

    def _attend(self, stack: Stack, program: tuple[str, ...]) -> Verdict:
        plan = self._plan
        self._vigil = Vigil(
            plan.count,
            plan.hosts,
            strict=plan.strict,
            start_timeout=plan.start_timeout,
            now=time.monotonic(),
            timing=self._timing,
        )
        differ = plan.strict and len({host.slots for host in plan.hosts}) > 1
        slots_file = self._hostfile(stack) if differ else None
        ours = arguments(stack, plan.count, hostfile=slots_file)
        words = (plan.mpirun, *ours, *plan.options, *wrapped(program))
        if not plan.count:
            words = tuple(word.replace(_OPERATORS, f"{self._folder}/") for word in program)
        call = self._mpirun = self._run(words, {**self._environment(stack), **plan.env})
        self.started.set()
        end = None if plan.deadline is None else time.monotonic() + plan.deadline
        while call not in self._over:
            times = [moment for moment in (self._vigil.deadline, end) if moment is not None]
            event = self._stations.get(min(times, default=None))
            if event is not None:
                self._handle(event)
            self._do(self._vigil.tick(time.monotonic()))
            if plan.deadline is not None and end is not None and time.monotonic() >= end:
                end = None
                self._do(self._vigil.expired(plan.deadline, time.monotonic()))
            if self._vigil.is_given_up:
                return self._vigil.ended(-signal.SIGKILL)
        code = self._over[call]
        if isinstance(code, str):
            raise FiberError(code)
        return self._vigil.ended(code)

    def _hostfile(self, stack: Stack) -> str:
        return f"{self._folder}/{_HOSTFILES[stack.is_open_mpi]}"

    def _environment(self, stack: Stack) -> dict[str, str]:
        networks = self._networks
        assert networks is not None
        slots = {host.slots for host in self._plan.hosts}
        ground = RunFacts(
            agent=f"{self._folder}/{AGENT}",
            hostfile=self._hostfile(stack),
            networks=networks.names,
            interface=networks.chosen[LAUNCHER].interface,
            largest_index=max(found.index for found in networks.chosen.values()),
            slots=slots.pop() if len(slots) == 1 else None,
            one_host=bool(self._shared_names()),
        )
        found = environment(stack, ground)
        if stack.is_open_mpi:
            # its session's folder; Hydra's ranks would get the launcher's, which is on no member
            found["TMPDIR"] = self._folder
        return found

    # -- events

    def _expect(self, done: Callable[[], bool], what: str) -> None:
        if not self._until(done, time.monotonic() + self._timing.answer):
            msg = f"stations of this run did not {what} within {self._timing.answer:g} s"
            raise FiberError(msg)

    def _until(self, done: Callable[[], bool], deadline: float) -> bool:
        while not done():
            event = self._stations.get(deadline)
            if event is None:
                return False
            self._handle(event)
        return True

    def _handle(self, event: Event) -> None:
        if isinstance(event, int):
            if self._vigil is None:
                raise Stopped(event)
            self._do(self._vigil.interrupted(event, time.monotonic()))
            return
        name, message = event
        if isinstance(message, Lost):
            self._lose(name, message.why)
        elif isinstance(message, messages.Hello):
            self._up[name] = message
        elif isinstance(message, messages.ProbeResult):
            self._dialled[name] = frozenset(
                (str(other), ip) for other, ips in message.reached.items() for ip in ips
            )
        elif isinstance(message, messages.HostnameSet):
            self._renamed[name] = message.done
        elif isinstance(message, messages.LauncherReady):
            self._folder = message.folder
        elif isinstance(message, (messages.RankUp, messages.RankEnded)):
            self._of_rank(name, message)
        else:
            self._of_command(name, message)

    def _of_rank(self, name: str, message: messages.RankUp | messages.RankEnded) -> None:
        if self._vigil is None:
            return
        now = time.monotonic()
        if isinstance(message, messages.RankUp):
            self._do(self._vigil.rank_up(message.rank, name, now))
        else:
            self._do(self._vigil.rank_ended(message.rank, message.code, now))

    def _lose(self, name: str, why: str) -> None:
        host = self._up[name].host if name in self._up else ""
        told = f"{name} (on {host})" if host else name
        if self._vigil is None or name == LAUNCHER:
            msg = f"{told} was lost: {why}"
            raise FiberError(msg)
        for call in [call for call, member in self._routes.items() if member == name]:
            del self._routes[call]
            self._stations.tell(LAUNCHER, messages.Refused(call, f"{told} was lost: {why}"))
        self._do(self._vigil.lost(told, why, time.monotonic()))

    def _of_command(self, name: str, message: messages.FromStation) -> None:
        if isinstance(message, messages.CommandRequested):
            self._begin(message)
        elif isinstance(message, (messages.Input, messages.Signal)):
            if message.call in self._routes:
                self._stations.tell(self._routes[message.call], message)
        elif isinstance(message, (messages.Output, messages.Ended, messages.Refused)):
            if message.call < 0:
                if not isinstance(message, messages.Output):
                    self._routes.pop(message.call, None)
                self._stations.tell(LAUNCHER, message)
            else:
                self._of_ours(message)

    def _of_ours(self, message: messages.Output | messages.Ended | messages.Refused) -> None:
        if isinstance(message, messages.Ended):
            self._over[message.call] = message.code
        elif isinstance(message, messages.Refused):
            self._over[message.call] = message.why
        elif message.call == self._mpirun:
            self._output(message.stream, message.data)
        else:
            self._wrote[message.call] += message.data

    def _begin(self, asked: messages.CommandRequested) -> None:
        """An agent wants a command on a member."""
        host = self._called.get(asked.host, asked.host)
        if host not in self._names or host == LAUNCHER:
            members = ", ".join(self._names[1:9])
            why = f"no member is called {asked.host}; there are {members}"
            self._stations.tell(LAUNCHER, messages.Refused(asked.call, why))
            return
        assert self._networks is not None
        self._routes[asked.call] = host
        here = self._up[host]
        env = member_environment(
            self._networks.chosen[host].interface,
            folder=here.folder if here.host in self._shared_names() else None,
        )
        env = {**env, **self._plan.env}
        argv = ("/bin/sh", "-c", asked.command)
        self._stations.tell(
            host,
            messages.Run(
                call=asked.call,
                argv=argv,
                env=env,
                overridable=frozenset(set(env) - set(self._plan.env)),
            ),
        )

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Begin):
                self._stations.tell(instruction.host, messages.ReleaseRanks(instruction.count))
            elif self._mpirun is not None:
                self._stations.tell(LAUNCHER, messages.Signal(self._mpirun, instruction.number))
