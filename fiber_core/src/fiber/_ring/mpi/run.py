"""Run of ``mpirun``: what its members are told and say, and its connection to this process's streams and signals.

The run is a gang: :class:`fiber._ring.controller.RingController` starts all of its members or none, has
them brought together here, and ends them. Its one round is led by the launcher: mpirun runs there. :func:`run` is the
command with its streams and signals; :class:`MpiProtocol` leads a run without them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.threads import ending_signals
from fiber._ring import events
from fiber._ring.controller import RingController
from fiber._ring.model import Failure, Group, MpiTiming, Policy, RingTiming
from fiber._ring.mpi import messages
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
from fiber._ring.mpi.member_agent import AGENT, AgentProcess
from fiber._ring.mpi.ranks import (
    Begin,
    Instruction,
    RankMonitor,
    Verdict,
    discover_script,
    hostfile,
    own_addresses,
    wrapped,
)
from fiber._ring.mpi.spec import LAUNCHER, RunSpec
from fiber._ring.protocol import Hello, Probe, ProbeResult
from fiber._ring.reachability import Networks, choose_networks, probe_targets
from fiber._runtime import runtime
from fiber.backend_parts.standard_streams import read_until, write_all
from fiber.exceptions import FiberError
from fiber.process import requested

if TYPE_CHECKING:
    from fiber._base.threads import Timer
    from fiber._ring.workers import Connections, WorkerHandle
    from fiber.connection import Connection

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_HOSTFILES = {True: "hostfile", False: "hostfile.hydra"}
#: where the operator's containers have these files, and commands in manifests look for them
_OPERATORS = "/etc/mpi/"

#: whether what was asked for has come
_Condition = Callable[[], bool]


class MpiProtocol:
    """Protocol with the member agents of one run, on the thread of its controller.

    Args:
        plan: the specification of the run.
        output: called with 1 or 2 and what mpirun wrote.
        timing: durations of the run.
        clock: the time, in seconds.
    """

    are_agents = True

    def __init__(
        self,
        plan: RunSpec,
        *,
        output: Callable[[int, bytes], None],
        timing: MpiTiming,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._timing, self._clock = plan, timing, clock
        self._output = output
        #: name of the gang
        self.name = f"mpirun-{secrets.token_hex(2)}"
        #: set once mpirun is there
        self.started = threading.Event()
        #: how mpirun has ended, once it has
        self.verdict: Verdict | None = None
        # members of each job, by its name, which is the last one's
        self._members = {names[-1]: names for names in plan.jobs()}
        self._names = (LAUNCHER, *(host.name for host in plan.hosts))
        self._places: dict[str, tuple[WorkerHandle, int]] = {}
        self._hellos: dict[str, Hello] = {}
        self._dialled: dict[str, ProbeResult] = {}
        self._renamed: dict[str, bool] = {}
        #: members by the addresses that Hydra knows them by
        self._called: dict[str, str] = {}
        self._folder = ""
        self._networks: Networks | None = None
        # what is done before mpirun, and what it waits for
        self._steps: Iterator[_Condition] = iter(())
        self._may_go_on: _Condition = lambda: False
        #: what our own commands wrote, and how they ended
        self._wrote: dict[int, bytearray] = {}
        self._over: dict[int, int | str] = {}
        # agents' calls by the member that has their command
        self._routes: dict[int, str] = {}
        self._call = 0
        self._command: tuple[str, ...] = ()
        self._environ: dict[str, str] = {}
        self._mpirun: int | None = None
        self._monitor: RankMonitor | None = None
        self._timer: Timer | None = None
        self._round = 0
        self._is_halting = self._is_over = False

    def connect(self, connections: Connections) -> None:
        """Use these workers, this machine and these timers from now on."""
        self._handles, self._feed = connections.handles, connections.feed
        self._call_later = connections.call_later

    def process(self, ends: list[Connection], seat: int) -> AgentProcess:
        """Return the process of a worker: an agent of each member of its job."""
        return AgentProcess(list(self._members.values())[seat], ends, self._timing)

    def feed(self, data: bytes) -> None:
        """Something for mpirun's standard input; empty data ends it. For any thread."""
        if self._mpirun is not None:
            self._tell(LAUNCHER, messages.Input(self._mpirun, data))

    def interrupted(self, number: int) -> None:
        """A signal came: mpirun is ended with it; before its start, the gang."""
        if self._monitor is None:
            self._feed(events.TerminateRequested())
        elif not self._is_over:
            self._do(self._monitor.interrupted(number, self._clock()))

    # -- as the controller wants it

    def execute(self, command: events.Command) -> None:
        """Bring the members together, run mpirun, or end it."""
        if isinstance(command, events.StartRendezvous):
            self._meet(command)
        elif isinstance(command, events.StartRun):
            self._start_mpirun()
        else:
            assert isinstance(command, events.Halt), "a run has one round, whose members stay"
            self._halt(command.failure)

    def check_replies(self) -> None:
        """An mpirun that is to end has ended where the launcher has."""
        worker, slot = self._places.get(LAUNCHER, (None, 0))
        if self._is_halting and (worker is None or slot in worker.closed_slots):
            self._halted()

    def located(self, failure: Failure, worker: WorkerHandle, slot: int | None) -> Failure:
        """Return a failure with the name and the host of the member that is lost."""
        name = self._members[worker.group.name][-1 if slot is None else slot]
        hello = worker.hellos.get(slot or 0)
        where = f"{name} (on {hello.host.name})" if hello is not None else name
        why = failure.message or f"its process ended with exit code {failure.exit_code}"
        return values.evolve(failure, message=f"{where} was lost: {why}")

    def results(self) -> list[bytes]:
        """Return nothing: ranks are processes of mpirun's."""
        return []

    def _tell(self, name: str, message: Any) -> None:
        worker, slot = self._places[name]
        worker.send_to(slot, message)

    # -- before mpirun

    def _meet(self, command: events.StartRendezvous) -> None:
        self._round = command.round
        for placement in command.placements:
            worker = self._handles[placement.worker]
            for slot, name in enumerate(self._members[worker.group.name]):
                self._places[name] = worker, slot
        for name in self._names:
            worker, slot = self._places[name]
            self._hellos[name] = worker.hellos[slot]
        self._steps, self._may_go_on = self._prepare(), lambda: True
        self._go_on()

    def _go_on(self) -> None:
        try:
            while self._may_go_on():
                self._may_go_on = next(self._steps)
        except StopIteration:
            self._may_go_on = lambda: False
            self._feed(events.RendezvousCompleted(self._round))
        except FiberError as error:
            self._may_go_on = lambda: False
            failure = Failure(reason="MpiNotStarted", message=str(error), error=error)
            self._feed(events.RendezvousFailed(self._round, failure))

    def _prepare(self) -> Iterator[_Condition]:
        """Do what comes before mpirun; yields conditions to wait for.

        Raises:
            FiberError: mpirun cannot be started, with the reason.
        """
        for name in self._names:
            self._tell(name, Probe(probe_targets(name, self._hellos)))
        yield lambda: len(self._dialled) == len(self._names)
        self._networks = choose_networks(self._hellos, self._dialled)
        self._lead()
        yield lambda: bool(self._folder)
        stack = yield from self._recognise()
        yield from self._part_hosts(stack)
        program = yield from self._program()
        self._command = self._words(stack, program)
        self._environ = {**self._environment(stack), **self._plan.env}

    def _lead(self) -> None:
        hosts = self._plan.hosts
        assert self._networks is not None
        chosen = self._networks.chosen
        addresses = own_addresses(hosts, {name: found.ip for name, found in chosen.items()})
        self._called = {address: name for name, address in addresses.items()}
        files = {
            _HOSTFILES[True]: hostfile(hosts, open_mpi=True),
            _HOSTFILES[False]: hostfile(hosts, open_mpi=False, addresses=addresses),
        }
        files["discover_hosts.sh"] = discover_script(hosts)
        self._tell(LAUNCHER, messages.BecomeLauncher(files))

    def _recognise(self) -> Generator[_Condition, None, Stack]:
        program = self._plan.mpirun
        code, said = yield from self._ask((program, "--version"))
        if isinstance(code, str):
            where = self._hellos[LAUNCHER].host.name
            msg = f"{code} (on {where}); install an MPI there, or name its mpirun with --mpirun"
            raise FiberError(msg)
        return recognise(program, said)

    def _part_hosts(self, stack: Stack) -> Iterator[_Condition]:
        """Members of one host get names of their own where the stack tells hosts by these."""
        plan = self._plan
        if not self._shared_names() or stack.family is not Family.OPEN_MPI_PRRTE:
            return
        for host in plan.hosts:
            self._tell(host.name, messages.SetHostname())
        yield lambda: len(self._renamed) == len(plan.hosts)
        if not all(self._renamed.values()) and plan.count > len(plan.hosts):
            msg = (
                f"{stack} tells members by their host's name, and those of this run are on one host "
                f"({self._hellos[LAUNCHER].host.name}), whose user may not give them others; use one member, "
                f"with --slots {plan.count}"
            )
            raise FiberError(msg)

    def _shared_names(self) -> set[str]:
        """The names of hosts that several members have."""
        names = [self._hellos[host.name].host.name for host in self._plan.hosts]
        return {name for name in names if names.count(name) > 1}

    def _program(self) -> Generator[_Condition, None, tuple[str, ...]]:
        """The program; one of Python's ends all ranks when it raises, where mpi4py is there."""
        program = self._plan.program
        is_python = _PYTHON.fullmatch(PurePosixPath(program[0]).name) is not None
        is_script = len(program) > 1 and not program[1].startswith("-")
        if not (self._plan.count and is_python and is_script):
            return program
        # else the others wait for ever for a rank that has raised
        code, _ = yield from self._ask((program[0], "-c", "import mpi4py.run"))
        return (program[0], "-m", "mpi4py", *program[1:]) if code == 0 else program

    def _ask(self, argv: tuple[str, ...]) -> Generator[_Condition, None, tuple[int | str, str]]:
        """Run something on the launcher; its exit code or why there is none, and what it wrote."""
        call = self._run(argv, {})
        yield lambda: call in self._over
        return self._over[call], self._wrote[call].decode(errors="replace")

    def _run(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        self._call += 1
        self._wrote[self._call] = bytearray()
        self._tell(
            LAUNCHER,
            messages.Run(call=self._call, argv=tuple(argv), env=env, overridable=overridable(env)),
        )
        return self._call

    # -- mpirun

    def _words(self, stack: Stack, program: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that the launcher runs."""
        plan = self._plan
        if not plan.count:
            return tuple(word.replace(_OPERATORS, f"{self._folder}/") for word in program)
        differ = plan.strict and len({host.slots for host in plan.hosts}) > 1
        slots_file = self._hostfile(stack) if differ else None
        ours = arguments(stack, plan.count, hostfile=slots_file)
        return (plan.mpirun, *ours, *plan.options, *wrapped(program))

    def _start_mpirun(self) -> None:
        plan = self._plan
        self._monitor = RankMonitor(
            plan.count,
            plan.hosts,
            strict=plan.strict,
            start_timeout=plan.start_timeout,
            now=self._clock(),
            timing=self._timing,
        )
        self._mpirun = self._run(self._command, self._environ)
        self.started.set()
        self._do([])

    def _halt(self, failure: Failure | None) -> None:
        """Have mpirun end, if it has not; some failures are the gang's, such as a lost member."""
        self._is_halting = True
        if self._is_over:
            self._halted()
            return
        assert failure is not None, "what succeeds has ended"
        assert self._monitor is not None, "mpirun runs"
        for call, name in list(self._routes.items()):
            if self._places[name][0].number == failure.worker:
                del self._routes[call]
                self._tell(LAUNCHER, messages.Refused(call, failure.message))
        self._do(self._monitor.failed(failure.message, self._clock()))
        self.check_replies()

    def _halted(self) -> None:
        """Mpirun has ended, or its launcher has."""
        self._is_over, self._is_halting = True, False
        self._arm(None)
        # an answer to a command does not come while that is carried out
        self._call_later(0.0, lambda: self._feed(events.Halted(self._round)))

    def _ended(self, code: int | str) -> None:
        """Mpirun has ended with an exit code, or was not started for a reason."""
        assert self._monitor is not None, "mpirun runs"
        if isinstance(code, str):
            failure: Failure | None = Failure(reason="MpiNotStarted", message=code)
        else:
            self.verdict = found = self._monitor.ended(code)
            failure = (
                Failure(reason=f"EXIT({found.code})", message=found.why) if found.code else None
            )
        self._is_over = True
        self._arm(None)
        if self._is_halting:
            self._halted()
        else:
            self._feed(events.RoundEnded(self._round, failure))

    def _hostfile(self, stack: Stack) -> str:
        return f"{self._folder}/{_HOSTFILES[stack.is_open_mpi]}"

    def _environment(self, stack: Stack) -> dict[str, str]:
        networks = self._networks
        assert networks is not None
        slots = {host.slots for host in self._plan.hosts}
        facts = RunFacts(
            agent=f"{self._folder}/{AGENT}",
            hostfile=self._hostfile(stack),
            networks=networks.names,
            interface=networks.chosen[LAUNCHER].interface,
            largest_index=max(found.index for found in networks.chosen.values()),
            slots=slots.pop() if len(slots) == 1 else None,
            one_host=bool(self._shared_names()),
        )
        found = environment(stack, facts)
        if stack.is_open_mpi:
            # its session's folder; Hydra's ranks would get the launcher's, which is on no member
            found["TMPDIR"] = self._folder
        return found

    # -- messages of members

    def receive(self, worker: WorkerHandle, slot: int, message: Any) -> None:
        """Process a message of a member agent."""
        name = self._members[worker.group.name][slot]
        if isinstance(message, ProbeResult):
            self._dialled[name] = message
        elif isinstance(message, messages.HostnameSet):
            self._renamed[name] = message.done
        elif isinstance(message, messages.LauncherReady):
            self._folder = message.folder
        elif isinstance(message, (messages.RankUp, messages.RankEnded)):
            self._of_rank(name, message)
        else:
            self._of_command(message)
        self._go_on()

    def _of_rank(self, name: str, message: messages.RankUp | messages.RankEnded) -> None:
        if self._monitor is None or self._is_over:
            return
        now = self._clock()
        if isinstance(message, messages.RankUp):
            self._do(self._monitor.rank_up(message.rank, name, now))
        else:
            self._do(self._monitor.rank_ended(message.rank, message.code, now))

    def _of_command(self, message: Any) -> None:
        if isinstance(message, messages.CommandRequested):
            self._begin(message)
        elif isinstance(message, (messages.Input, messages.Signal)):
            if message.call in self._routes:
                self._tell(self._routes[message.call], message)
        elif isinstance(message, (messages.Output, messages.Ended, messages.Refused)):
            if message.call < 0:
                if not isinstance(message, messages.Output):
                    self._routes.pop(message.call, None)
                self._tell(LAUNCHER, message)
            else:
                self._of_ours(message)

    def _of_ours(self, message: messages.Output | messages.Ended | messages.Refused) -> None:
        if not isinstance(message, messages.Output):
            end = message.code if isinstance(message, messages.Ended) else message.why
            self._over[message.call] = end
            if message.call == self._mpirun and not self._is_over:
                self._ended(end)
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
            self._tell(LAUNCHER, messages.Refused(asked.call, why))
            return
        assert self._networks is not None
        self._routes[asked.call] = host
        here = self._hellos[host]
        env = member_environment(
            self._networks.chosen[host].interface,
            folder=here.folder if here.host.name in self._shared_names() else None,
        )
        env = {**env, **self._plan.env}
        argv = ("/bin/sh", "-c", asked.command)
        self._tell(
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
                self._tell(instruction.host, messages.ReleaseRanks(instruction.count))
            elif self._mpirun is not None:
                self._tell(LAUNCHER, messages.Signal(self._mpirun, instruction.number))
        assert self._monitor is not None, "there is a monitor where there are instructions"
        self._arm(self._monitor.deadline)

    def _arm(self, due: float | None) -> None:
        """Have :meth:`_tick` called at this time, and at no other."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer = self._call_later(max(0.0, due - self._clock()), self._tick)

    def _tick(self) -> None:
        assert self._monitor is not None, "mpirun runs"
        self._do(self._monitor.tick(self._clock()))
        if self._monitor.is_given_up:
            self._ended(-signal.SIGKILL)


def gang(plan: RunSpec, timing: MpiTiming) -> tuple[list[Group], Policy]:
    """Return the workers of a run, one for each job, and their policy.

    A member whose output nobody reads is silent for as long as that takes, so there is no limit to its
    silence; the end of its job is noticed as that of any.
    """
    groups = [
        Group(
            workers=1,
            slots=len(names),
            resources=need.resources,
            image=need.image,
            volumes=need.volumes,
            name=names[-1],
        )
        for names, need in plan.jobs().items()
    ]
    policy = Policy(
        start_timeout=plan.start_timeout,
        deadline=plan.deadline,
        heartbeat=math.inf,
        halts=True,
        timing=values.evolve(RingTiming.at(timing.scale), grace=timing.end),
    )
    return groups, policy


def run(plan: RunSpec) -> Verdict:
    """Run mpirun to its end with this process's standard streams, and return its outcome.

    Raises:
        FiberError: mpirun was not started; the text has the reason, and all jobs have ended.
    """
    current = runtime.current()
    timing = MpiTiming.at(current.timing.scale)
    groups, policy = gang(plan, timing)
    protocol = MpiProtocol(plan, output=_write, timing=timing)
    groups = [values.evolve(one, resources=requested(one.resources, current)) for one in groups]
    controller = RingController(current, groups, policy, protocol)
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        # on a thread of its own: the handler may have interrupted what it would wait for
        action = lambda: controller.post(lambda: protocol.interrupted(number))  # noqa: E731
        threading.Thread(target=action, name="fiber-mpirun-signal").start()

    with ending_signals(handle), contextlib.ExitStack() as stack:
        stack.callback(controller.close)
        stack.enter_context(_input(protocol))
        controller.start()
        controller.outcome.wait()
        controller.wait_closed(policy.timing.heartbeat + policy.timing.end)
    failure = controller.outcome.failure
    if protocol.verdict is not None:
        return protocol.verdict
    if received:
        return Verdict(128 + received[0], is_asked=True)
    assert failure is not None, "what succeeds has a verdict"
    raise failure.error if isinstance(failure.error, FiberError) else FiberError(failure.message)


@contextlib.contextmanager
def _input(protocol: MpiProtocol) -> Iterator[None]:
    """Forward standard input to mpirun while the block runs."""
    ending, end = os.pipe()
    thread = threading.Thread(
        target=_read, args=(protocol, ending), name="fiber-mpirun-input", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        # where mpirun was never started too
        protocol.started.set()
        os.write(end, b"x")
        thread.join()
        os.close(ending)
        os.close(end)


def _read(protocol: MpiProtocol, ending: int) -> None:
    protocol.started.wait()
    read_until(0, ending, protocol.feed)


def _write(stream: int, data: bytes) -> None:
    # the reader may have gone; the run goes on
    with contextlib.suppress(OSError):
        write_all(stream, data)
