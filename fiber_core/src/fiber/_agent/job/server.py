"""A job's supervisor at work: its processes, its signals, its parent and their lease.

A process of a remote job: waits until its supervisor has reached the parent, then begins.

When the processes of a job hear that the platform takes its place away; pure, the clock is passed in.

A worker of a pool need not end at once: its parent gives it nothing new, and has it exit as soon as it
is done with what it has begun. It hears of SIGTERM when that takes too long.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from typing import TYPE_CHECKING

from fiber._agent import instructions
from fiber._agent.job import folder
from fiber._agent.job.config import GRACE, Orders, supervisor_ident
from fiber._agent.job.output_forwarder import Echoes, open_sinks
from fiber._agent.job.parent_link import Connected, Line, Lost, News, Receipt, Refused, Said
from fiber._agent.lease import INTERVAL, LeaseTable
from fiber._agent.supervisor import kernel, messages, orphans
from fiber._agent.supervisor.cgroup import JobConfiner
from fiber._agent.supervisor.child import environment
from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.jobs import JobEntry, JobTable
from fiber._agent.supervisor.journal import Journal
from fiber._agent.supervisor.loop import Loop
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.runner import JobRunner, Launch
from fiber._base import entry_points, values
from fiber._wire.handshake import Hello
from fiber._wire.link import Link
from fiber.model import JobSpec, JobStatus, ResourceRequest

if TYPE_CHECKING:
    from fiber._tunnel.landing import Landing

__all__ = ["ENTRY", "PASSED_ON", "Gate", "JobServer", "Leaving", "main"]

#: how the supervisor names :func:`main`
ENTRY = "fiber._agent.job.server:main"
#: signals that a supervisor passes on to its processes, besides SIGTERM and SIGINT
PASSED_ON = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Gate:
    """Where processes wait until the parent has accepted their job."""

    #: of this process's job; set before the fork
    current: Gate | None = None

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self) -> None:
        """Let everybody go on."""
        os.close(self.reader)
        # all who waited may have been killed meanwhile
        with contextlib.suppress(BrokenPipeError):
            os.write(self.writer, b"\0" * 4096)
        os.close(self.writer)

    def wait(self) -> bool:
        """Wait; False where it is never opened."""
        os.close(self.writer)
        try:
            return bool(os.read(self.reader, 1))
        finally:
            os.close(self.reader)


def main(private: bytes, index: int) -> int:
    """Be process ``index`` of the job; return its exit code."""
    gate, Gate.current = Gate.current, None
    if gate is not None and not gate.wait():
        return 126
    code: int = entry_points.load_object(instructions.ENTRY)(private, index)
    return code


#: seconds that a parent may be out of reach before processes are told without it
_MEET = 1.0
#: seconds before the platform's SIGKILL at which processes hear of SIGTERM: at most, and as a part of all
_RESERVE, _PART = 2.0, 0.25


class Leaving:
    """Whether SIGTERM waits, and how long.

    Args:
        grace: seconds from the platform's SIGTERM to its SIGKILL, for a job whose parent can have it
            exit; None where processes are told at once.
    """

    def __init__(self, grace: float | None) -> None:
        self._grace = grace
        self._due: float | None = None
        self._meet_by: float | None = None
        #: True once the platform has asked, and as long as processes have not been told
        self.is_on = False

    def asked(self, now: float, *, parent_hears: bool) -> bool:
        """The platform wants the job gone; True where its processes are to be told now.

        Args:
            now: the moment.
            parent_hears: True where there is a connection.
        """
        if self._grace is None or self._due is not None:
            # whoever asks a second time does not want to wait
            self.is_on = False
            return True
        self.is_on = True
        self._due = now + self._grace - min(_RESERVE, _PART * self._grace)
        self._meet_by = None if parent_hears else now + _MEET
        return False

    def parent_heard(self) -> None:
        """The parent was told."""
        self._meet_by = None

    @property
    def due(self) -> float | None:
        """When processes are to be told; None where nothing is waited for."""
        if not self.is_on or self._due is None:
            return None
        return self._due if self._meet_by is None else min(self._due, self._meet_by)

    def is_due(self, now: float) -> bool:
        """True, once, where they are to be told now."""
        if self.due is None or now < self.due:
            return False
        self.is_on = False
        return True


#: seconds that a parent which has not been reached yet is dialled, at least
_FIRST = 10.0
#: seconds that the last report may take to arrive, while there is a connection
_FAREWELL = 3.0
#: seconds without a byte taken after which a terminal or engine is left behind at the end
_LAST_PATIENCE = 2.0
_PARENT = "parent"


class JobServer:
    """The supervisor of one job.

    Args:
        orders: what it was told.
        landing: where streams are opened into this job, if they are.
        descriptor_limit: soft limit of open files that processes are to have.
    """

    def __init__(
        self,
        orders: Orders,
        *,
        landing: Landing | None = None,
        descriptor_limit: int | None = None,
    ) -> None:
        self._landing = landing
        told = orders.instructions
        self._orders = orders
        self._ident = told.ident
        #: why nothing was done, where that is so
        self.refusal = ""
        #: of the first process, minus the signal
        self.exit_code = 0
        self._loop = Loop()
        self._descriptors = Descriptors()
        host = platform.node()
        self._table = JobTable(host)
        folder.sweep()
        # in place of the run's, which is on the parent's host
        self._folder = folder.JobFolder(told.credentials.run_id)
        # closed in the processes of the job, which may outlive this one
        self._descriptors.own(self._folder.descriptor)
        self._directory = self._folder.path
        self._echoes = Echoes(self._wake_line) if orders.tell_output else None
        self._sinks = sinks = open_sinks(
            self._loop, self._descriptors, self._resume, self._echoes, orders.prefix.encode()
        )
        self._runner = JobRunner(
            SupervisorOptions(
                run_id=told.credentials.run_id,
                run_directory=self._directory,
                master=None,
                host=host,
                keeps_logs=False,
                offers_channels=False,
            ),
            loop=self._loop,
            descriptors=self._descriptors,
            table=self._table,
            # never opened: who wants to know is told
            journal=Journal(self._directory, self._notice),
            sinks=sinks,
            descriptor_limit=descriptor_limit,
            on_changed=self._on_changed,
            on_channel=lambda _owner, descriptor: os.close(descriptor),
            on_process_end=lambda _owner: None,
            on_job_end=lambda _job: None,
            on_notice=self._notice,
            confiner=JobConfiner(enforce=orders.confine),
        )
        self._gate: Gate | None = None
        self._leaving = Leaving(orders.grace if orders.drains else None)
        self._leases: LeaseTable[str] = LeaseTable(lease=orders.lease, silence=orders.silence)
        more = (lambda: None) if self._echoes is None else self._take_echo
        self._line = Line(told.urls, self._connect, self._on_news, more)
        self._status: messages.StatusChanged | None = None
        self._connected = False
        self._met = False
        self._over = False
        self._received = False
        self._why_lost = "it did not answer"

    def serve(self) -> None:
        """Start the processes, and see to them until all have ended.

        Raises:
            InChild: in each forked child.
        """
        kernel.adopt_orphans()
        self._listen_to_signals()
        self._start_processes()
        # from here on no fork: the line opens sockets
        self._pass_signals_on()
        reader, self._bell = self._descriptors.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(self._bell, False)
        self._loop.on_readable(reader, lambda: self._take_news(reader))
        if self._landing is not None:
            self._landing.serve(self._directory)
        self._line.start()
        self._loop.call_later(INTERVAL, self._look)
        self._loop.call_later(max(_FIRST, self._orders.lease), self._give_up_meeting)
        while not self._over:
            self._loop.turn()
        self._end()

    def leave_child(self) -> None:
        """In a forked child: close everything that is the supervisor's."""
        signal.set_wakeup_fd(-1)
        for sink in self._sinks:
            sink.detach()
        self._loop.close()
        self._descriptors.close_all()
        if self._landing is not None:
            self._landing.abandon()

    # -- output ---------------------------------------------------------------------------------

    def _wake_line(self) -> None:
        self._line.wake()

    def _tell_echoes(self) -> None:
        if self._echoes is not None:
            self._echoes.connected(self._connected)
            self._line.wake()

    def _take_echo(self) -> messages.Output | None:
        """The next piece of output for the parent, on the line's thread."""
        assert self._echoes is not None
        taken = self._echoes.take()
        if self._echoes.may_let_go:
            self._on_news()
        return taken

    def _resume(self) -> None:
        if self._echoes is None or not self._echoes.is_full:
            self._runner.resume_output()

    # -- processes ------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        orders = self._orders
        told = orders.instructions
        here = values.evolve(told, directory=self._directory, patience=max(_FIRST, orders.lease))
        spec = JobSpec(
            run_id=told.credentials.run_id,
            name=orders.name,
            argv=(),
            entry=ENTRY,
            private=here.encode(),
            resources=ResourceRequest(cpu=orders.cpu, memory=orders.memory),
            processes=told.processes,
        )
        self._gate = Gate.current = Gate()
        self._table.add(self._ident, owner=None, processes=told.processes)
        launch = Launch(
            job_id=self._ident,
            spec=spec,
            environ=environment(os.environ, spec),
            cwd=folder.present(),
            owner=None,
            answer=self._on_started,
        )
        self._runner.start(launch)
        Gate.current = None

    def _on_started(self, refusal: str, warnings: tuple[str, ...]) -> None:
        if refusal:
            self.refusal = refusal
            self._over = True
        for warning in warnings:
            self._notice(f"{self._orders.name}: {warning}")

    def _on_changed(self, entry: JobEntry) -> None:
        status = self._table.status(entry.id)
        if not status.state.is_terminal:
            self._tell(status)
            return
        self._status = messages.StatusChanged(job_id=entry.id, status=status)
        self.exit_code = status.exit_code or 0
        # once the runner is done with it
        self._loop.call_later(0, self._farewell)

    def _tell(self, status: JobStatus) -> None:
        status = values.evolve(status, draining=self._leaving.is_on)
        self._status = messages.StatusChanged(job_id=self._ident, status=status)
        if self._connected:
            self._line.tell(self._status)

    def _terminate(self, grace: float) -> None:
        entry = self._table.get(self._ident)
        if entry is not None:
            self._runner.terminate(entry, grace)

    def _notice(self, words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))

    # -- signals --------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        reader, writer = self._descriptors.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            # the handler does nothing: what counts is the byte that the interpreter writes
            signal.signal(signum, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

        def on_signal() -> None:
            with contextlib.suppress(BlockingIOError):
                for signum in os.read(reader, 4096):
                    if signum == signal.SIGTERM:
                        self._leave()
                    elif signum != signal.SIGCHLD:
                        self._signal(None, signum)
            self._runner.reap()

        self._loop.on_readable(reader, on_signal)

    def _pass_signals_on(self) -> None:
        # after the fork, so that processes have them as the system has
        for signum in PASSED_ON:
            signal.signal(signum, lambda *_: None)
        # the end of the terminal or connection that started this is no end of its work
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _leave(self) -> None:
        """The platform takes our place away."""
        if self._leaving.asked(self._loop.now(), parent_hears=self._connected):
            self._signal(None, signal.SIGTERM)
        else:
            if self._status is not None:
                self._tell(self._status.status)
            self._await_leaving()

    def _await_leaving(self) -> None:
        now = self._loop.now()
        if self._leaving.is_due(now):
            self._signal(None, signal.SIGTERM)
        elif self._leaving.due is not None:
            self._loop.call_later(self._leaving.due - now, self._await_leaving)

    def _signal(self, index: int | None, signum: int, *, group: bool = False) -> None:
        entry = self._table.get(self._ident)
        if entry is not None:
            self._runner.signal(entry, index, signum, group=group)

    # -- the parent -----------------------------------------------------------------------------

    def _connect(self, url: str) -> Link:
        told = self._orders.instructions
        hello = Hello.mine(supervisor_ident(told.ident))
        return Link(url, told.credentials, hello, max_frame=told.max_frame)

    def _on_news(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"n")

    def _take_news(self, reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)
        for news in self._line.take():
            self._on_one(news)
        if self._echoes is not None and self._echoes.may_let_go:
            self._echoes.let_go()
            self._runner.resume_output()

    def _on_one(self, news: News) -> None:
        now = time.monotonic()
        if isinstance(news, Connected):
            self._connected = self._met = True
            self._tell_echoes()
            self._leases.joined(_PARENT, now)
            self._leaving.parent_heard()
            if self._gate is not None:
                self._gate.open()
                self._gate = None
            self._line.tell(messages.Hello(pid=os.getpid()))
            if self._status is not None:
                if self._status.status.state.is_terminal:
                    self._line.report(self._status)
                else:
                    self._line.tell(self._status)
        elif isinstance(news, Lost):
            self._connected = False
            self._tell_echoes()
            self._why_lost = news.why
            self._leases.cut(_PARENT, now)
        elif isinstance(news, Refused):
            self._refused(news.why)
        elif isinstance(news, Receipt):
            self._received = self._over = True
        else:
            self._leases.heard(_PARENT, now)
            self._obey(news)

    def _obey(self, news: Said) -> None:
        message = news.message
        if isinstance(message, messages.Signal):
            self._signal(message.process, message.signum, group=message.group)
        elif isinstance(message, messages.Terminate):
            self._terminate(message.grace)
        elif isinstance(message, messages.Kill):
            self._signal(None, signal.SIGKILL, group=True)

    def _refused(self, why: str) -> None:
        if self._gate is not None:
            self.refusal = why
        self._notice(f"{self._orders.name} is ended: {why}")
        self._leases.drop(_PARENT)
        self._terminate(0.0 if self._gate is not None else GRACE)

    def _give_up_meeting(self) -> None:
        if not self._met and not self._over:
            urls = ", ".join(self._orders.instructions.urls)
            self._refused(f"cannot reach the parent at {urls}: {self._why_lost}")

    def _look(self) -> None:
        self._loop.call_later(INTERVAL, self._look)
        for expired in self._leases.look(time.monotonic()):
            what = "the connection to" if expired.is_cut else "nothing was heard of"
            since = "gone" if expired.is_cut else "silent"
            self._notice(
                f"{self._orders.name} is ended: {what} its parent"
                f"{' is ' + since if expired.is_cut else ''} for {expired.silent:.1f} s"
            )
            self._terminate(GRACE)

    # -- the end --------------------------------------------------------------------------------

    def _farewell(self) -> None:
        """All have ended: what they left is ended too, and then the parent is told."""
        orphans.end()
        for sink in self._sinks:
            sink.drain(_LAST_PATIENCE)
        if self._connected and self._status is not None:
            self._line.report(self._status)
        elif _PARENT not in self._leases:
            # nobody is left to be told
            self._over = True
            return
        # where it does not arrive, the engine still tells of our end
        self._loop.call_later(_FAREWELL, self._finish)

    def _finish(self) -> None:
        self._over = True

    def _end(self) -> None:
        self._line.close()
        if self._landing is not None:
            self._landing.close()
        self._runner.close()
        for sink in self._sinks:
            sink.drain(_LAST_PATIENCE)
        self._folder.remove()
