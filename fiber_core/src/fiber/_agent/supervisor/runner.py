"""Runner of a supervisor's jobs: starts, watches and ends their processes.

:func:`reap` collects the kernel's reports about children (stopped, continued, ended) and gives
the caller the moment in which the id of a dead process cannot belong to another one yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fiber._agent.rundir import collect_notes
from fiber._agent.supervisor import orphans
from fiber._agent.supervisor.child import ChildPlan, Spawned, forks_entries, spawn
from fiber._agent.supervisor.devices import Grant
from fiber._agent.supervisor.jobs import (
    ExitReport,
    JobEntry,
    JobTable,
    Owner,
    ended_before_start,
    not_started,
    report_exit,
)
from fiber._agent.supervisor.journal import Journal
from fiber._agent.supervisor.messages import Attributes, SupervisorOptions
from fiber._agent.supervisor.output import LineTail, LogFile, OutputRelay, OutputTarget
from fiber._base import values
from fiber._base.limits import explained
from fiber._base.threads import Loop, Timer
from fiber._wire.descriptors import Descriptors
from fiber.model import JobSpec

if TYPE_CHECKING:
    from fiber._agent.supervisor.cgroup import Confinement, Confiner
    from fiber.model import ResourceRequest


@values.frozen(kw_only=True)
class Launch:
    """A job that is to be started."""

    #: its id
    job_id: str
    #: its specification
    spec: JobSpec
    #: the whole environment of its processes
    environ: Mapping[str, str] = values.field(repr=False)
    #: their working directory
    cwd: str
    #: their umask, priority, CPUs and limits; None: this process's
    attributes: Attributes | None = None
    #: its submitter
    owner: Owner
    #: called once: with "" when it runs, else with the reason why it cannot, and with warnings
    answer: Callable[[str, tuple[str, ...]], None]
    #: granted devices
    grants: tuple[Grant, ...] = ()
    #: True where it was accepted before and waited: an error is then its end, not a refusal
    accepted: bool = False
    #: True where the program's terminal interrupts it from its start
    foreground: bool = False


@values.define(kw_only=True)
class RunningProcess:
    """A process that was forked."""

    #: position within its job
    index: int
    #: its id and our ends of its pipes
    spawned: Spawned
    #: the last lines it wrote
    tail: LineTail
    #: readers of its output
    relays: list[OutputRelay]
    #: True until it runs the program, or has reported why it cannot
    reporting: bool = True
    #: error that kept it from running
    failure: str = ""
    #: True where it is to be interrupted once it runs
    interrupted: bool = False


@values.define(kw_only=True)
class RunningJob:
    """A job of which something was started."""

    #: its id
    job_id: str
    #: what it is started by, until its submitter got the answer that it runs; kept no longer, since
    #: it has the whole environment
    launch: Launch | None
    #: True where the program's terminal interrupts it
    foreground: bool
    #: MB of memory that it may have, if limited
    memory: int | None
    #: where its output is kept
    log: LogFile
    #: its processes by index, as far as they were forked
    processes: dict[int, RunningProcess] = values.field(factory=dict)
    #: why it could not be started; the answer once its processes have ended
    refusal: str = ""
    #: the timer that kills it
    deadline: Timer | None = None
    #: its control groups
    confinement: Confinement | None = None
    #: limits that are not enforced
    warnings: tuple[str, ...] = ()


@values.frozen
class Change:
    """A child was stopped by a signal, or runs again."""

    #: the child
    pid: int
    #: the signal that stopped it; None where it runs again
    stopped_by: int | None


@values.frozen
class Ended:
    """A child ended and is no more."""

    #: the child
    pid: int
    #: as ``os.wait4`` gives it
    wait_status: int
    #: most resident memory it had, in bytes
    peak_memory: int


if sys.platform == "linux":

    def reap(before: Callable[[int], None]) -> Iterator[Change | Ended]:
        """Yield the changes of children since the last call; never waits.

        Args:
            before: called with the id of a child that has ended, while that id can belong to
                no other process yet: the time to signal its group.
        """
        everything = os.WEXITED | os.WSTOPPED | os.WCONTINUED
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, everything | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            pid = seen.si_pid
            if seen.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
                yield Change(pid, seen.si_status)
            elif seen.si_code == os.CLD_CONTINUED:
                os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG)
                yield Change(pid, None)
            else:
                before(pid)
                _, status, usage = os.wait4(pid, 0)
                # Linux counts in kilobytes
                yield Ended(pid, status, usage.ru_maxrss * 1024)

else:

    def reap(before: Callable[[int], None]) -> Iterator[Change | Ended]:
        """Yield the changes of children since the last call; never waits.

        Args:
            before: called with the id of a child that has just been reaped: where the system
                cannot report it earlier, this is the time to signal its group.
        """
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                yield Change(pid, os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                yield Change(pid, None)
            else:
                before(pid)
                yield Ended(pid, status, usage.ru_maxrss)


def kill_group(pid: int, signum: int = signal.SIGKILL) -> None:
    """Signal the group that a child leads, and the child itself should it not lead it yet."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        # before it has left the supervisor's group; or nothing but zombies, which macOS forbids to signal
        signal_process(pid, signum)


def signal_process(pid: int, signum: int) -> None:
    """Signal a child that has not been reaped; one that has just ended is no error."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return


_MAX_REPORT = 1 << 12
_MB = 1 << 20
#: attempts to remove a control group whose killed members have not ended
_REMOVE_ATTEMPTS = 100
_ENDING = frozenset({signal.SIGTERM, signal.SIGKILL})


class JobRunner:
    """Starts jobs and ends them: the part of a supervisor that has processes, pipes and timers.

    Args:
        options: the supervisor's options.
        loop: runs the callbacks.
        descriptors: owns all descriptors.
        table: the job table.
        journal: returns the journal of a job's run, by the job's id.
        sinks: returns where a job's standard output and error go besides its log, by the job's id.
        descriptor_limit: soft limit of open files that processes get.
        on_changed: called with a job after each change of its status.
        on_channel: called with a process's owner key and the supervisor's end of its channel.
        on_process_end: called with the owner key of a process that has ended.
        on_job_end: called with the id of a job that is no more.
        on_notice: called with sentences for people.
        confiner: enforces limits of memory and CPU time.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        *,
        loop: Loop,
        descriptors: Descriptors,
        table: JobTable,
        journal: Callable[[str], Journal],
        sinks: Callable[[str], Sequence[OutputTarget]],
        descriptor_limit: int | None,
        on_changed: Callable[[JobEntry], None],
        on_notice: Callable[[str], None],
        on_channel: Callable[[Owner, int], None] = lambda _, descriptor: os.close(descriptor),
        on_process_end: Callable[[Owner], None] = lambda _: None,
        on_job_end: Callable[[str], None] = lambda _: None,
        confiner: Confiner | None = None,
    ) -> None:
        self._options = options
        self._timing = options.timing
        self._loop = loop
        self._descriptors = descriptors
        self._table = table
        self._journal = journal
        self._sinks = sinks
        self._descriptor_limit = descriptor_limit
        self._on_changed = on_changed
        self._on_channel = on_channel
        self._on_process_end = on_process_end
        self._on_job_end = on_job_end
        self._on_notice = on_notice
        self._running: dict[str, RunningJob] = {}
        self._relays: set[OutputRelay] = set()
        self._removing: set[Confinement] = set()
        self._pid = os.getpid()
        self._confiner = confiner

    # -- starting ---------------------------------------------------------------------------

    def hold(self, launch: Launch) -> None:
        """Enter a waiting job in the journal; :meth:`start` or :meth:`kill` follows."""
        self._enter(launch)
        self._on_changed(self._table[launch.job_id])

    def start(self, launch: Launch) -> None:
        """Fork the processes of a job that the table has already."""
        spec = launch.spec
        path = f"{self._options.run_directory}/logs/{launch.job_id}.log"
        log = LogFile(
            path if self._options.keeps_logs else None, self._descriptors, self._on_notice
        )
        confinement, warnings = self._confine(launch.job_id, spec.resources)
        running = RunningJob(
            job_id=launch.job_id,
            launch=launch,
            foreground=launch.foreground,
            memory=spec.resources.memory,
            log=log,
            confinement=confinement,
            warnings=warnings,
        )
        self._running[launch.job_id] = running
        entry = spec.entry if forks_entries() else None
        for index in range(spec.processes):
            try:
                self._fork(running, launch, index, entry)
            except OSError as error:
                self._give_up(running, launch, f"cannot start a process: {explained(error)}")
                return
        if entry is not None:
            self._answer(running, launch)

    def _fork(self, running: RunningJob, launch: Launch, index: int, entry: str | None) -> None:
        def plan(*, stdout: int, stderr: int, report: int, channel: int | None) -> ChildPlan:
            return ChildPlan(
                job_id=launch.job_id,
                index=index,
                supervisor=self._pid,
                run_directory=self._options.run_directory,
                entry=entry,
                argv=launch.spec.argv,
                environ=launch.environ,
                cwd=launch.cwd,
                attributes=launch.attributes,
                foreground=launch.spec.foreground,
                private=launch.spec.private,
                descriptor_limit=self._descriptor_limit,
                devices=launch.grants,
                groups=() if running.confinement is None else running.confinement.files,
                stdout=stdout,
                stderr=stderr,
                report=report,
                channel=channel,
            )

        channel = entry is not None and self._options.offers_channels
        spawned = spawn(plan, self._descriptors, channel=channel)
        tail = LineTail(self._options.tail)
        process = RunningProcess(index=index, spawned=spawned, tail=tail, relays=[])
        running.processes[index] = process
        sinks = self._sinks(launch.job_id)
        for which, descriptor in enumerate((spawned.stdout, spawned.stderr)):
            relay = OutputRelay(
                descriptor,
                loop=self._loop,
                descriptors=self._descriptors,
                sink=sinks[which] if sinks else None,
                log=running.log,
                tail=tail,
                partial_line=self._timing.partial_line,
                prefix=f"[{launch.spec.name}] ".encode("utf-8", "replace")
                if launch.spec.log_prefix
                else b"",
                on_end=self._relays.discard,
            )
            process.relays.append(relay)
            self._relays.add(relay)
        self._loop.on_readable(spawned.report, lambda: self._on_readable_report(running, process))
        self._table.started(launch.job_id, index, spawned.pid)
        if spawned.channel is not None:
            self._on_channel((launch.job_id, index), spawned.channel)

    def _on_readable_report(self, running: RunningJob, process: RunningProcess) -> None:
        self._on_report(running, process)
        entry = self._table.get(running.job_id)
        if process.interrupted and not process.reporting and entry is not None:
            self.signal(entry, process.index, signal.SIGINT, group=True)

    def _on_report(self, running: RunningJob, process: RunningProcess) -> None:
        if not process.reporting:
            return
        try:
            words = os.read(process.spawned.report, _MAX_REPORT)
        except BlockingIOError:
            return
        process.reporting = False
        process.failure = words.decode("utf-8", "replace")
        self._loop.forget(process.spawned.report)
        self._descriptors.close(process.spawned.report)
        entry, launch = self._table.get(running.job_id), running.launch
        if launch is None or entry is None or entry.refused:
            return
        processes = running.processes.values()
        if process.failure and not launch.accepted:
            self._refuse(running, process.failure)
        # of one that was accepted and cannot be run its end tells so
        elif not any(p.reporting for p in processes) and not all(p.failure for p in processes):
            self._answer(running, launch)

    def _answer(self, running: RunningJob, launch: Launch) -> None:
        running.launch = None
        if launch.accepted:
            for warning in running.warnings:
                self._on_notice(f"{launch.spec.name}: {warning}")
        else:
            self._enter(launch)
        for index, process in running.processes.items():
            self._journal(launch.job_id).started(launch.job_id, index, process.spawned.pid)
        if not launch.accepted:
            launch.answer("", running.warnings)
        self._on_changed(self._table[launch.job_id])

    def _give_up(self, running: RunningJob, launch: Launch, words: str) -> None:
        if not launch.accepted:
            self._refuse(running, words)
            return
        entry = self._table.abandoned(running.job_id, not_started(words))
        self.kill(entry)
        self._on_changed(entry)
        if not entry.pids:
            self._close(running, entry)

    def _refuse(self, running: RunningJob, words: str) -> None:
        entry = self._table[running.job_id]
        entry.refused = True
        running.refusal = words
        self.kill(entry)
        if not entry.pids:
            self._close(running, entry)

    def _enter(self, launch: Launch) -> None:
        journal = self._journal(launch.job_id)
        journal.submitted(launch.job_id, launch.spec, launch.owner, self._options.host)

    # -- ending -----------------------------------------------------------------------------

    def signal(
        self,
        entry: JobEntry,
        index: int | None,
        signum: int,
        *,
        group: bool,
        is_asked: bool = True,
    ) -> None:
        """Signal one process of a job or all of them, alone or with their groups.

        A job that waits for its devices has no process that a signal would reach. Where SIGTERM or
        SIGKILL is for all of it, it ends at once and never starts.

        Args:
            entry: the job.
            index: of the process; None for all.
            signum: the signal.
            group: True for the processes' groups.
            is_asked: False for a signal that this process was sent itself, by whoever: an end by it is
                not told as one that was asked for.
        """
        is_for_all = index is None or len(entry.processes) == 1
        if entry.waiting and is_for_all and signum in _ENDING:
            self._abandon(entry, signum)
            return
        for process in entry.processes:
            if process.pid is None or process.state.is_terminal:
                continue
            if index is None or index == process.index:
                if is_asked:
                    entry.sent_signals.add(signum)
                if not group:
                    signal_process(process.pid, signum)
                elif signum == signal.SIGKILL:
                    _kill_group_and_strays(process.pid, orphans.children(process.pid))
                else:
                    kill_group(process.pid, signum)

    def interrupt(self, entry: JobEntry) -> None:
        """SIGINT to all groups of a job, as a terminal sends it; one that waits has ended by it."""
        running = self._running.get(entry.id)
        if running is None:
            self._abandon(entry, signal.SIGINT)
            return
        entry.sent_signals.add(signal.SIGINT)
        for process in running.processes.values():
            if process.reporting:
                # it would be taken for one that could not be started
                process.interrupted = True
            else:
                self.signal(entry, process.index, signal.SIGINT, group=True)

    def come_to_foreground(self, job_id: str) -> None:
        """Have the program's terminal interrupt a job from now on; one that has ended is no error."""
        running = self._running.get(job_id)
        if running is not None:
            running.foreground = True

    def interrupt_from_terminal(self, entry: JobEntry) -> None:
        """Interrupt a job that is in the foreground; others are left alone."""
        running = self._running.get(entry.id)
        if running is not None and running.foreground:
            self.interrupt(entry)

    def terminate(self, entry: JobEntry, grace: float) -> None:
        """SIGTERM now, SIGKILL to the groups after ``grace`` seconds."""
        running = self._running.get(entry.id)
        if running is None:
            self._abandon(entry, signal.SIGTERM)
            return
        self.signal(entry, None, signal.SIGTERM, group=False)
        if running.deadline is None or running.deadline.when > self._loop.now() + grace:
            if running.deadline is not None:
                running.deadline.cancel()
            running.deadline = self._loop.call_later(grace, lambda: self.kill(entry))

    def kill(self, entry: JobEntry, verdict: ExitReport | None = None) -> None:
        """SIGKILL to all groups of a job; one that is no more is no error.

        Args:
            entry: the job.
            verdict: what its end is reported as, where that is not the signal.
        """
        if entry.id not in self._table:
            return
        entry.verdict = entry.verdict or verdict
        if entry.id not in self._running:
            self._abandon(entry, signal.SIGKILL)
            return
        self.signal(entry, None, signal.SIGKILL, group=True)

    def _abandon(self, entry: JobEntry, signum: int) -> None:
        self.abandon(entry, ended_before_start(signum))

    def abandon(self, entry: JobEntry, report: ExitReport) -> None:
        """End a job that is held and will never start."""
        self._table.abandoned(entry.id, report)
        for process in entry.processes:
            self._journal(entry.id).ended(entry.id, process)
        self._on_changed(entry)
        self._forget(entry.id)

    def reap(self) -> None:
        """Handle everything that happened to children since the last call."""
        for event in reap(self._before_reaping):
            if isinstance(event, Change):
                if event.stopped_by is None:
                    changed = self._table.continued(event.pid)
                else:
                    changed = self._table.stopped(event.pid, event.stopped_by)
                if changed is not None and self._running[changed.id].launch is None:
                    self._on_changed(changed)
            else:
                self._on_process_ended(event)

    def _before_reaping(self, pid: int) -> None:
        if self._table.find(pid) is not None:
            # with it dead, what it started is ours
            ours = orphans.children(os.getpid())
            _kill_group_and_strays(
                pid, (child for child in ours if self._table.find(child) is None)
            )

    def _on_process_ended(self, event: Ended) -> None:
        found = self._table.find(event.pid)
        if found is None:
            # an orphan that came to us when its parent ended
            return
        entry, index = found
        running = self._running[entry.id]
        process = running.processes[index]
        # its report may still be in the pipe, behind the signal of its end
        self._on_report(running, process)
        for relay in process.relays:
            relay.finish()
        signum = -os.waitstatus_to_exitcode(event.wait_status)
        requested = signum in entry.sent_signals
        told = entry.verdict if requested and signum == signal.SIGKILL else None
        report = told or report_exit(
            event.wait_status,
            peak_memory=event.peak_memory,
            memory_limit=None if running.memory is None else running.memory * _MB,
            out_of_memory=signum == signal.SIGKILL
            and not requested
            and running.confinement is not None
            and running.confinement.ran_out_of_memory(),
            requested=requested,
            failure=process.failure,
        )
        self._table.ended(
            event.pid,
            report,
            log_tail=process.tail.lines(),
            peak_memory=event.peak_memory,
            noted=collect_notes(self._options.run_directory, event.pid),
        )
        self._on_process_end((entry.id, index))
        status = self._table.status(entry.id)
        if not entry.refused:
            self._journal(entry.id).ended(entry.id, status.processes[index])
            self._on_changed(entry)
        if status.state.is_terminal:
            self._close(running, entry)

    def _close(self, running: RunningJob, entry: JobEntry) -> None:
        if running.deadline is not None:
            running.deadline.cancel()
        for process in running.processes.values():
            if process.reporting:
                self._loop.forget(process.spawned.report)
                self._descriptors.close(process.spawned.report)
        running.log.close()
        if running.confinement is not None:
            running.confinement.kill()
            self._remove(running.confinement, _REMOVE_ATTEMPTS)
        del self._running[entry.id]
        self._forget(entry.id)
        if entry.refused and running.launch is not None:
            running.launch.answer(running.refusal, ())

    def _confine(
        self, job_id: str, request: ResourceRequest
    ) -> tuple[Confinement | None, tuple[str, ...]]:
        if self._confiner is None:
            if request.memory is None and request.cpu is None:
                return None, ()
            # few jobs have limits
            from fiber._agent.supervisor.cgroup import Confiner

            self._confiner = Confiner()
        return self._confiner.confine(job_id, request)

    def _remove(self, confinement: Confinement, attempts: int) -> None:
        # there is no event for the last member's end: the kernel offers one for version 2 only
        if confinement.remove() or not attempts:
            self._removing.discard(confinement)
        else:
            self._removing.add(confinement)
            self._loop.call_later(
                self._timing.cgroup_retry, lambda: self._remove(confinement, attempts - 1)
            )

    def _forget(self, job_id: str) -> None:
        self._table.forget(job_id)
        self._on_job_end(job_id)

    # -- output -----------------------------------------------------------------------------

    def resume_output(self) -> None:
        """Read on from processes that were held back by a slow terminal."""
        for relay in tuple(self._relays):
            relay.resume()

    def close(self) -> None:
        """Release control groups and pipes that outlast their jobs; called after the last end."""
        for confinement in self._removing:
            confinement.remove()
        for relay in tuple(self._relays):
            with contextlib.suppress(OSError):
                relay.close()


def _kill_group_and_strays(group: int, candidates: Iterable[int]) -> None:
    """SIGKILL to a group and to its stray descendants, see ``orphans.stray_descendants``."""
    strays = orphans.stray_descendants(group, candidates)
    kill_group(group)
    for stray in strays:
        signal_process(stray, signal.SIGKILL)
