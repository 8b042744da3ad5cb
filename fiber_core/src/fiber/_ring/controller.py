"""Controller of a ring: feeds its state machine with events and carries out its commands.

:class:`RingController` has one thread, which runs an :class:`~fiber._base.threads.SharedLoop`: the members' pipes,
callbacks that other threads post, and the machine's deadlines. A :class:`~fiber._ring.workers.GangProtocol` translates
between members' messages and the machine's events: :class:`MemberProtocol` is that of rings, and
:class:`fiber._ring.mpi.run.MpiProtocol` that of a run of mpirun. :class:`Outcome` is what users
wait for. Calls to the platform block, so :class:`JobThreads` makes them off the controller's thread.

Apart from ``ring``, which is what users call: this is the thread and the processes behind it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.threads import SharedLoop, in_turns
from fiber._ring import events
from fiber._ring.events import Command, StartWorker
from fiber._ring.machine import RingMachine
from fiber._ring.member import MemberProcess, MemberSpec, MemberThread
from fiber._ring.model import Failure, Group, Policy, RingStatus
from fiber._ring.protocol import (
    Heartbeat,
    Hello,
    ProbeResult,
    Raised,
    Ready,
    Returned,
    Run,
    StateReply,
)
from fiber._ring.rendezvous import Join, Round
from fiber._ring.workers import (
    Connections,
    GangProtocol,
    WorkerHandle,
    failed_process,
    start_failure,
    user_failure,
)
from fiber.connection import Connection, Pipe
from fiber.exceptions import FiberError
from fiber.model import Gang, JobState
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber.model import JobStatus


class MemberProtocol:
    """Protocol with the members: the current round, a join to it, and the newest state.

    Args:
        spec: function, framework and so on, for all members.
    """

    are_agents = False

    def __init__(self, spec: MemberSpec) -> None:
        self.name, self.spec = spec.name, spec
        self._commands: dict[type, Callable[[Any], None]] = {
            events.StartRendezvous: self._start_rendezvous,
            events.StartRun: self._start_run,
            events.StartJoin: self._start_join,
            events.UpdateMembers: self._update_members,
            events.CollectState: self._collect_state,
        }
        self._round: Round | None = None
        self._join: Join | None = None
        self._state: tuple[int, bytes | None] = (0, None)

    def connect(self, connections: Connections) -> None:
        """Use these workers and this machine from now on."""
        self._handles, self._feed = connections.handles, connections.feed
        self._bounds = connections.bounds

    def process(self, ends: list[Connection], seat: int) -> Process:
        """Return the process of a worker."""
        return MemberProcess(self.spec, ends, seat)

    def located(self, failure: Failure, worker: WorkerHandle, slot: int | None) -> Failure:
        """Return a failure with the rank of a worker's slot, if it has one."""
        return values.evolve(failure, rank=self._rank_of(worker, slot))

    def _rank_of(self, worker: WorkerHandle, slot: int | None) -> int | None:
        return None if self._round is None else self._round.rank_of(worker.number, slot)

    def results(self) -> list[bytes]:
        """Return the pickled results, by rank."""
        return [] if self._round is None else self._round.results()

    # -- commands of the machine

    def execute(self, command: events.Command) -> None:
        """Carry out a command about a round."""
        self._commands[type(command)](command)

    def _start_rendezvous(self, command: events.StartRendezvous) -> None:
        """Have the workers of a new round dial each other."""
        self._join = None
        self._round = Round(
            command.round, command.restarts, command.placements, self._handles, self._bounds
        )
        self._round.dial()

    def _start_run(self, _: events.StartRun) -> None:
        """Send all members the request to run."""
        current = self._round
        assert current is not None, "the machine forms a round before it runs"
        for placement in current.placements:
            self._handles[placement.worker].send(self._run(current))

    def _start_join(self, command: events.StartJoin) -> None:
        """Have running members dial a new worker and send their states."""
        assert self._round is not None, "the machine admits to a round"
        self._join = Join(self._round, self._handles[command.worker], self._handles)
        self._join.start()
        self.check_replies()

    def _update_members(self, command: events.UpdateMembers) -> None:
        """Send the new member table to running members, and an assignment to a joined worker."""
        current, join = self._round, self._join
        assert current is not None, "the machine changes a round"
        joined = any(placement.worker not in current.workers for placement in command.placements)
        joining = join.joining_ranks if join is not None and joined else ()
        current.update_members(command.placements, joining)
        self.check_replies()

    def _collect_state(self, command: events.CollectState) -> None:
        """Request the committed states of survivors."""
        current = self._round
        assert current is not None, "the machine collects from a round"
        current.request_states(command.workers)
        self.check_replies()

    # -- messages of members

    def receive(self, worker: WorkerHandle, slot: int, message: Any) -> None:
        """Process a message of a member."""
        number, current = worker.number, self._round
        if isinstance(message, ProbeResult) and current is not None:
            self._add_probe_result(current, worker, slot, message)
        elif isinstance(message, Ready) and current is not None:
            self._add_ready(current, worker, slot, message)
        elif isinstance(message, Returned):
            worker.returned[slot] = message.result
            if len(worker.returned) == worker.group.slots:
                self._feed(events.WorkerDone(number))
        elif isinstance(message, Raised):
            worker.raised.add(slot)
            host = worker.hellos[slot].host.name
            failed = user_failure(message, self._rank_of(worker, slot), host)
            self._feed(events.WorkerFailed(number, failed))
        else:
            assert isinstance(message, StateReply), f"unexpected message {message!r}"
            worker.states[slot] = message
            self.check_replies()

    def check_replies(self) -> None:
        """Check whether all awaited replies have come, or their members are gone."""
        current, join = self._round, self._join
        if current is not None and current.is_answered():
            self._adopt_newest_state(current)
            self._feed(events.StateCollected(current.number))
        if join is not None and join.is_answered():
            self._finish_join(join)

    def _add_probe_result(
        self, current: Round, worker: WorkerHandle, slot: int, message: ProbeResult
    ) -> None:
        join = self._join
        if join is not None:
            join.add_probe_result(worker, slot, message)
            self.check_replies()
            return
        failure = current.add_probe_result(worker.number, slot, message)
        if failure is not None:
            self._feed(events.RendezvousFailed(current.number, failure))

    def _add_ready(self, current: Round, worker: WorkerHandle, slot: int, message: Ready) -> None:
        if current.is_joining_worker(worker.number):
            worker.send_to(slot, self._run(current))
        elif current.add_ready(worker.number, slot, message):
            self._feed(events.RendezvousCompleted(current.number))

    def _finish_join(self, join: Join) -> None:
        failure, number, current = join.failure(), join.worker.number, self._round
        assert current is not None, "a worker joins a round"
        self._adopt_newest_state(current)
        if failure is None:
            self._feed(events.JoinCompleted(current.number, number))
        else:
            self._feed(events.JoinFailed(current.number, number, failure))
        if self._join is join:
            self._join = None

    def _adopt_newest_state(self, current: Round) -> None:
        """Keep the newest state that a member sent; members that begin go on from it."""
        newest = current.newest()
        if newest is not None and newest[0] >= self._state[0]:
            self._state = newest

    def _run(self, current: Round) -> Run:
        step, state = self._state
        return Run(facts=current.facts, step=step, state=state)


class Outcome:
    """Latest status and outcome of a ring, for threads that wait; thread-safe.

    Args:
        status: the status at first.
    """

    def __init__(self, status: RingStatus) -> None:
        self._changed = threading.Condition()
        self._status = status
        self._is_over = False
        self._results: tuple[bytes, ...] = ()
        #: reason of the failure, once the ring has failed
        self.failure: Failure | None = None

    # -- for waiting threads

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the ring; returns False after ``timeout`` seconds."""
        with self._changed:
            return in_turns(
                lambda turn: self._changed.wait_for(lambda: self._is_over, turn), timeout
            )

    def wait_for(
        self, condition: Callable[[RingStatus], bool], timeout: float | None = None
    ) -> bool:
        """Wait until a condition holds for the status.

        Returns:
            False if the ring ended or ``timeout`` seconds passed before.
        """
        with self._changed:
            in_turns(
                lambda turn: self._changed.wait_for(
                    lambda: condition(self._status) or self._is_over, turn
                ),
                timeout,
            )
            return condition(self._status)

    def results(self) -> list[Any]:
        """Return the results, by rank."""
        return [pickle.loads(found) for found in self._results]

    # -- for the controller

    def update(self, status: RingStatus) -> None:
        """Publish a new status."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def finish(self, failure: Failure | None, results: Sequence[bytes] = ()) -> None:
        """Publish the end of the ring; the first call counts."""
        with self._changed:
            if not self._is_over:
                self._is_over, self.failure = True, failure
                self._results = tuple(results)
            self._changed.notify_all()


log = logging.getLogger("fiber")


#: intervals without a turn after which this process is taken to have been stopped or asleep
_MISSED_TURNS = 3


#: calls to the platform at once
_MAX_THREADS = 16


def jobs_of(commands: Sequence[Command]) -> list[StartWorker]:
    """The workers of a step that are jobs."""
    return [one for one in commands if isinstance(one, StartWorker) and not one.group.is_caller]


class JobThreads:
    """Thread pool for calls to the platform: submits and ends a ring's jobs.

    Args:
        runtime: of the process that starts the ring.
        gang: what the workers are.
        listener: receives the jobs' events.
        gang_timeout: seconds within which all workers of one step must be placed; None where
            fewer are enough, so that they are no gang.
    """

    def __init__(
        self,
        runtime: Runtime,
        gang: GangProtocol,
        listener: RingController,
        gang_timeout: float | None,
    ) -> None:
        self._gang_timeout = gang_timeout
        self._runtime = runtime
        self._gang = gang
        self._listener = listener
        self._is_closed = False
        # gang of each worker that is to be submitted
        self._gangs: dict[int, Gang] = {}
        # starts its threads with the first calls
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="fiber-ring-job")

    def assign_gangs(self, commands: Sequence[StartWorker]) -> None:
        """Make one gang of all workers that are started in one step."""
        numbers = [one.worker for one in commands]
        if numbers and self._gang_timeout is not None:
            name = f"{self._gang.name}-{numbers[0]}"
            gang = Gang(name=name, size=len(numbers), timeout=self._gang_timeout)
            self._gangs.update(dict.fromkeys(numbers, gang))

    def calls(self, commands: Sequence[StartWorker]) -> list[list[StartWorker]]:
        """The workers of one step by the calls that submit them.

        A gang is one call where the platform takes several jobs in one, which may make one of them.
        """
        is_gang = len(commands) > 1 and commands[0].worker in self._gangs
        if is_gang and self._runtime.launcher.takes_many:
            return [list(commands)]
        return [[one] for one in commands]

    def launch(self, commands: Sequence[StartWorker]) -> None:
        """Submit workers' jobs, in one call, on the calling thread.

        Raises:
            Exception: an error of pickling the spec; the platform's go to the listener.
        """
        made = [self._make(command) for command in commands]
        jobs = [(process, options) for process, options, _, _ in made]
        found: Sequence[Child | BaseException] = ()
        try:
            found = self._runtime.launcher.launch_many(jobs)
        except FiberError as error:
            found = [error] * len(jobs)
        finally:
            for _, _, ours, theirs in made:
                for end in (*theirs, *(() if found else ours)):
                    end.close()
        for command, (process, _, ours, _), child in zip(commands, made, found, strict=True):
            if isinstance(child, BaseException):
                for end in ours:
                    end.close()
                self._listener.not_launched(command.worker, child)
            else:
                self._listener.launched(command.worker, child, process, ours)

    def _make(
        self, command: StartWorker
    ) -> tuple[Process, dict[str, Any], list[Connection], list[Connection]]:
        """A worker's process, the options of its job, and the two ends of each pipe."""
        group, number = command.group, command.worker
        pairs = [Pipe() for _ in range(group.slots)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        process = self._gang.process(list(theirs), command.seat)
        options = {
            "resources": group.resources,
            "image": group.image,
            "volumes": group.volumes,
            "processes": group.slots,
            "gang": self._gangs.pop(number, None),
            "on_status": lambda child, status: self._listener.job_changed(number, child, status),
        }
        return process, options, ours, theirs

    def launch_in_background(self, commands: Sequence[StartWorker]) -> None:
        """Submit workers' jobs, in one call, on a thread of the pool."""
        self._threads.submit(self._launch_and_report, commands)

    def _launch_and_report(self, commands: Sequence[StartWorker]) -> None:
        try:
            self.launch(commands)
        except Exception as error:
            for command in commands:
                self._listener.not_launched(command.worker, error)

    def submit(self, action: Callable[[], None]) -> None:
        """Call a function on a thread of the pool, or directly once closed; errors are logged."""
        if self._is_closed:
            _try(action)
        else:
            self._threads.submit(_try, action)

    def close(self) -> None:
        """Wait for all calls; later ones are made on the calling thread."""
        self._is_closed = True
        self._threads.shutdown(wait=True)


def _try(action: Callable[[], None]) -> None:
    try:
        action()
    except FiberError as error:
        log.warning("fiber: a member could not be ended, and will be again: %s", error)


class RingController:
    """Controller of one ring, on a thread of its own.

    The machine is guarded by a lock, since :meth:`start` and :meth:`status` use it from the user's
    threads; everything else happens on the controller's thread.

    Args:
        runtime: of the process that starts the ring.
        groups: the workers of the ring.
        policy: limits and timeouts.
        protocol: what the workers are, and what they are told and say.
        changed: called with each new status, mostly on the controller's thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        groups: Sequence[Group],
        policy: Policy,
        protocol: GangProtocol,
        changed: Callable[[RingStatus], None] = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._policy, self._protocol = policy, protocol
        self._changed = changed
        self._machine = RingMachine(groups, policy, epoch=time.time() - time.monotonic())
        self._lock = threading.Lock()
        self._last_turn = time.monotonic()
        self._handles: dict[int, WorkerHandle] = {}
        self._loop = SharedLoop()
        protocol.connect(
            Connections(
                handles=self._handles,
                bounds=self._machine.bounds,
                feed=self._feed,
                call_later=self._loop.call_later,
            )
        )
        gang_timeout = policy.start_timeout if policy.min is None else None
        self._job_threads = JobThreads(runtime, protocol, self, gang_timeout)
        self._thread = threading.Thread(target=self._run, name="fiber-ring-controller", daemon=True)
        #: status and outcome, for waiting threads
        self.outcome = Outcome(self._machine.status())
        self._finalizer: util.Finalize | None = None

    # -- for the ring's user

    def start(self) -> None:
        """Start the workers.

        The first one is submitted on the calling thread, so that a pickling error is raised by
        this call; the others follow at once, many in parallel, or come with it where the platform
        takes a gang in one call.

        Raises:
            Exception: any error of pickling the function, the initializer or its arguments.
        """
        commands = self._handle(events.StartRequested())
        first = next((one for one in commands if isinstance(one, events.StartWorker)), None)
        launched: list[events.StartWorker] = []
        try:
            if first is not None and not first.group.is_caller:
                launched = self._job_threads.calls(jobs_of(commands))[0]
                self._hold(launched)
                self._job_threads.launch(launched)
        except BaseException:
            self._close()
            raise
        self._runtime.own(self)
        # runs before multiprocessing ends daemons: a ring is waited for, as processes are
        self._finalizer = util.Finalize(None, _finish, (weakref.ref(self),), exitpriority=20)
        self._execute_all([one for one in commands if one not in launched])
        self._thread.start()

    def request(self, event: events.Event) -> None:
        """Pass a user's request to the machine and wait until it was handled.

        Raises:
            ValueError: the machine refused it.
        """
        done = threading.Event()
        errors: list[ValueError] = []

        def handle() -> None:
            try:
                self._feed(event)
            except ValueError as error:
                errors.append(error)
            finally:
                done.set()

        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self._loop.call_soon(handle)
        # the loop may have ended without calling what was posted
        while not done.wait(self._policy.timing.poll) and self._thread.is_alive():
            pass
        if errors:
            raise errors[0]

    def post(self, action: Callable[[], None]) -> None:
        """Call a function on the controller's thread."""
        self._loop.call_soon(action)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until everything that was kept is released; returns False after ``timeout``."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def status(self) -> RingStatus:
        """Return the current status."""
        with self._lock:
            return self._machine.status()

    def close(self) -> None:
        """Terminate the ring and release everything, because the program ends."""
        if self._thread.is_alive():
            self.request(events.TerminateRequested("its program ended"))
            self.outcome.wait(self._policy.timing.end)
            self.request(events.TerminateRequested())
            self.wait_closed(self._policy.timing.end)

    # -- the controller's thread

    def _run(self) -> None:
        try:
            self._loop.run(self._turn)
        except Exception as error:
            # threads must not wait for ever for a ring without a controller
            log.exception("fiber: a ring's coordinator failed")
            self.outcome.finish(start_failure(error))
        finally:
            self._close()

    def _turn(self) -> float | None:
        self._feed(events.Tick())
        due = self._machine.next_deadline()
        # often enough to notice that this process was stopped itself
        next_check = time.monotonic() + self._policy.heartbeat_interval
        return next_check if due is None else min(due, next_check)

    def _close(self) -> None:
        """Kill remaining workers, of which there are none after an orderly end, and release all."""
        self._loop.stop()
        for worker in list(self._handles.values()):
            worker.is_cancelled = True
            worker.kill(self._job_threads.submit)
        self._job_threads.close()
        self._loop.run_posted()
        for worker in self._handles.values():
            worker.close()
        self._loop.close()
        self._runtime.disown(self)
        if self._finalizer is not None:
            self._finalizer.cancel()
        self.outcome.finish(Failure(reason="Terminated", message="its coordinator ended"))

    def _handle(self, event: events.Event) -> list[events.Command]:
        with self._lock:
            now, before = time.monotonic(), self._machine.phase
            slept, self._last_turn = (
                now - self._last_turn > _MISSED_TURNS * self._policy.heartbeat_interval,
                now,
            )
            commands = self._machine.handle(events.ControllerPaused(), now) if slept else []
            commands += self._machine.handle(event, now)
            has_news = commands or self._machine.phase is not before
            after = self._machine.status() if has_news else None
        if after is not None:
            self._changed(after)
            self.outcome.update(after)
        self._job_threads.assign_gangs(jobs_of(commands))
        return commands

    def _feed(self, event: events.Event) -> None:
        self._execute_all(self._handle(event))

    def _hold(self, commands: Sequence[events.StartWorker]) -> None:
        for one in commands:
            self._handles[one.worker] = WorkerHandle(
                one.worker, one.group, is_agent=self._protocol.are_agents
            )

    def _execute_all(self, commands: Sequence[events.Command]) -> None:
        calls = {call[0].worker: call for call in self._job_threads.calls(jobs_of(commands))}
        for one in commands:
            if isinstance(one, events.StartWorker) and not one.group.is_caller:
                # with the first of those that come in one call
                if call := calls.get(one.worker):
                    self._hold(call)
                    self._job_threads.launch_in_background(call)
            else:
                self._execute(one)

    def _execute(self, command: events.Command) -> None:
        if isinstance(command, events.StartWorker):
            self._hold([command])
            self._start_caller(command)
        elif isinstance(command, events.EndWorker):
            self._end(command)
        elif isinstance(command, events.Conclude):
            self._conclude(command)
        elif isinstance(command, events.CleanUp):
            self._loop.stop()
        else:
            self._protocol.execute(command)

    # -- workers start

    def launched(self, number: int, child: Child, process: Process, ends: list[Connection]) -> None:
        """Take over the job of a worker; from any thread, as the next two methods."""

        def take_over() -> None:
            worker = self._handles[number]
            worker.child, worker.process = child, process
            self._watch(worker, ends)
            if worker.is_cancelled:
                worker.kill(self._job_threads.submit)

        self._loop.call_soon(take_over)

    def not_launched(self, number: int, error: BaseException) -> None:
        """Report that a worker's job was not accepted."""
        self._loop.call_soon(lambda: self._feed(events.WorkerEnded(number, start_failure(error))))

    def job_changed(self, number: int, child: Child, status: JobStatus) -> None:
        """Process a new status of a worker's job."""
        self._loop.call_soon(lambda: self._job_changed(number, child, status))

    def _start_caller(self, command: events.StartWorker) -> None:
        """Run the caller's own rank on a thread of this process."""
        worker = self._handles[command.worker]
        assert isinstance(self._protocol, MemberProtocol), "only a ring's caller is a member"
        ours, theirs = Pipe()
        gone = events.WorkerEnded(command.worker)
        worker.thread = MemberThread(
            self._protocol.spec, theirs, lambda: self._loop.call_soon(lambda: self._feed(gone))
        )
        self._watch(worker, [ours])
        worker.thread.start()

    def _watch(self, worker: WorkerHandle, ends: list[Connection]) -> None:
        worker.ends = ends
        for slot, end in enumerate(ends):
            self._loop.on_readable(end.fileno(), functools.partial(self._read, worker, slot))

    # -- workers run

    def _read(self, worker: WorkerHandle, slot: int) -> None:
        end = worker.ends[slot]
        try:
            while end.poll():
                self._receive(worker, slot, end.recv())
        except (EOFError, OSError):
            # the status of its job has the reason
            self._unwatch(worker, slot)
            self._protocol.check_replies()

    def _receive(self, worker: WorkerHandle, slot: int, message: Any) -> None:
        self._feed(events.WorkerHeartbeat(worker.number))
        if isinstance(message, Hello):
            worker.hellos[slot] = message
            if worker.is_up:
                self._feed(events.WorkerUp(worker.number, message.host))
        elif not isinstance(message, Heartbeat):
            self._protocol.receive(worker, slot, message)

    def _unwatch(self, worker: WorkerHandle, slot: int) -> None:
        if slot not in worker.closed_slots:
            worker.closed_slots.add(slot)
            with contextlib.suppress(OSError):
                self._loop.forget(worker.ends[slot].fileno())

    def _job_changed(self, number: int, child: Child, status: JobStatus) -> None:
        worker = self._handles.get(number)
        if worker is None:
            return
        worker.child = child
        for slot in range(len(worker.ends)):
            # messages that it sent before its end count
            if slot not in worker.closed_slots:
                self._read(worker, slot)
        bad = failed_process(worker, status)
        failure = None if bad is None else self._protocol.located(bad[1], worker, bad[0])
        if status.state.is_terminal:
            for slot in range(len(worker.ends)):
                self._unwatch(worker, slot)
            worker.close()
            self._feed(events.WorkerEnded(number, failure))
            self._protocol.check_replies()
        elif failure is not None:
            self._feed(events.WorkerFailed(number, failure))
        elif status.state is JobState.PENDING and status.message:
            self._feed(events.WorkerPending(number, status.message))

    # -- workers end

    def _end(self, command: events.EndWorker) -> None:
        worker = self._handles[command.worker]
        if not worker.end(self._job_threads.submit, force=command.force):
            self._loop.call_soon(lambda: self._feed(events.WorkerEnded(command.worker)))

    def _conclude(self, command: events.Conclude) -> None:
        for worker in self._handles.values():
            if worker.is_idle:
                worker.leave()
        self.outcome.finish(command.failure, () if command.failure else self._protocol.results())


def _finish(reference: weakref.ref[RingController]) -> None:
    """Wait for a running ring at the program's end, and release what it keeps."""
    controller = reference()
    if controller is not None:
        controller.outcome.wait()
        controller.close()
