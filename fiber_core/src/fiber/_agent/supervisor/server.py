"""Supervisor of this host (the fork server): answers requests, and ends with its master.

:func:`main` reads its options from the channel it is given, and serves; a forked child unwinds to it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from fiber._agent import rundir
from fiber._agent.supervisor import kernel, messages, orphans
from fiber._agent.supervisor.child import InChild, become, environment
from fiber._agent.supervisor.devices import DeviceQueue, HostAccount
from fiber._agent.supervisor.interrupts import Interrupts, leave_group
from fiber._agent.supervisor.jobs import JobEntry, JobTable, Owner
from fiber._agent.supervisor.journal import Journal, read_ids
from fiber._agent.supervisor.messages import HEADER, Channel, Decoder, SupervisorOptions
from fiber._agent.supervisor.orphans import DETACHED_TITLE, SUPERVISOR_TITLE
from fiber._agent.supervisor.output import Sink
from fiber._agent.supervisor.preload import Preloaded, is_fibers, preload, preload_fibers
from fiber._agent.supervisor.runner import JobRunner, Launch
from fiber._base import values
from fiber._base.threads import Loop, Timer
from fiber._wire.descriptors import Descriptors, raise_limit_to_hard
from fiber.exceptions import ResourceError, WireError
from fiber.model import Allocation

_R = TypeVar("_R", bound=messages.Request)

#: most waiting jobs that are told of each change of what they wait for
_MOST_TOLD = 4


class RequestHandler:
    """Carries out requests; each gets one reply on the channel it came by.

    A channel's requests reach the jobs that were submitted on it and no others.

    Args:
        table: the job table.
        runner: starts and ends jobs.
        known_ids: ids that the run has used already.
        on_submit: called before each start.
        on_changed: called with a job that waits for something else now.
        send_about: sends a message about a job to its submitter.
        settle_interrupts: calls back, in the order of the calls, once the runner got every SIGINT
            to the program's process group that was sent before.
        on_shutdown: called with the reply to give once everything has ended.
        preload: imports modules.
        retire: called where another supervisor is to take the master's next jobs, with modules that each process is
            to import by itself, and the reply to give then.
        devices: grants devices.
        look_again: calls back a moment later.
    """

    def __init__(
        self,
        table: JobTable,
        runner: JobRunner,
        *,
        known_ids: set[str],
        on_submit: Callable[[], None],
        on_changed: Callable[[JobEntry], None],
        send_about: Callable[[JobEntry, object], None],
        settle_interrupts: Callable[[Callable[[], None]], None],
        on_shutdown: Callable[[Callable[[], None]], None],
        preload: Callable[[Iterable[str], Mapping[str, str] | None], Preloaded],
        retire: Callable[[tuple[str, ...], Callable[[], None]], None],
        devices: DeviceQueue,
        look_again: Callable[[Callable[[], None]], object],
    ) -> None:
        self._table = table
        self._runner = runner
        self._ids = known_ids
        self._on_submit = on_submit
        self._on_changed = on_changed
        self._send_about = send_about
        self._settle_interrupts = settle_interrupts
        self._on_shutdown = on_shutdown
        self._preload_modules = preload
        self._retire = retire
        self._devices = devices
        self._look_again = look_again
        self._looks_again = False
        self._waiting: dict[str, Launch] = {}
        self._ending: list[tuple[Channel, int]] = []
        self._closed = ""
        self._handlers: Mapping[type, Callable[[Channel, object], None]] = {
            messages.Submit: _typed(messages.Submit, self._submit),
            messages.Signal: _typed(messages.Signal, self._signal),
            messages.Interrupt: _typed(messages.Interrupt, self._interrupt),
            messages.Terminate: _typed(messages.Terminate, self._terminate),
            messages.Kill: _typed(messages.Kill, self._kill),
            messages.Preload: _typed(messages.Preload, self._preload),
            messages.Devices: _typed(messages.Devices, self._offer),
            messages.EndAll: _typed(messages.EndAll, self._end_all),
            messages.Shutdown: _typed(messages.Shutdown, self._shutdown),
        }

    def handle(self, channel: Channel, message: object) -> None:
        """Carry out one message.

        Raises:
            WireError: it is no message that a supervisor receives.
        """
        if isinstance(message, messages.Ping):
            channel.send(messages.Pong())
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            msg = f"a supervisor does not know what {type(message).__name__} is"
            raise WireError(msg)
        handler(channel, message)

    def close(self, words: str) -> None:
        """Refuse all further jobs."""
        self._closed = words

    def job_ended(self, job_id: str) -> None:
        """Start jobs that get an ended job's devices; answer requests that waited for its end."""
        self._waiting.pop(job_id, None)
        self._grant(self._devices.release(job_id))
        self._answer_endings()

    def _grant(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            if self._closed:
                continue
            launch = self._waiting.pop(allocation.job_id)
            self._runner.start(values.evolve(launch, grants=self._devices.grants(allocation)))
        self._tell_reasons()
        self._await_others()

    def _await_others(self) -> None:
        if self._devices.awaits_others and not (self._looks_again or self._closed):
            self._looks_again = True
            self._look_again(self._on_look)

    def _on_look(self) -> None:
        self._looks_again = False
        if not self._closed:
            self._grant(self._devices.grant_waiting())

    def _tell_reasons(self) -> None:
        """Tell why jobs wait where that has changed: those that are next, since there may be many."""
        for job_id in self._devices.waiting()[:_MOST_TOLD]:
            entry, reason = self._table[job_id], self._devices.reason(job_id)
            if entry.waiting != reason:
                entry.waiting = reason
                self._on_changed(entry)

    def _answer_endings(self) -> None:
        for channel, number in tuple(self._ending):
            if not self._table.owned_by(channel.owner):
                self._ending.remove((channel, number))
                channel.send(messages.Done(number=number))

    def _submit(self, channel: Channel, message: messages.Submit) -> None:
        entry = self._start(channel, message)
        if entry is None:
            return

        def tell() -> None:
            held, entry.held = entry.held or (), None
            channel.send(*held)

        def begin() -> None:
            self._runner.come_to_foreground(entry.id)
            tell()

        if message.spec.foreground:
            # A SIGINT that was sent before this request is not for it, and one that is sent once its
            # submitter knows of it is: so the answer waits, and the process does not
            self._settle_interrupts(begin)
        else:
            tell()

    def _start(self, channel: Channel, message: messages.Submit) -> JobEntry | None:
        """Start a job; returns its entry where it runs already, and its submitter is to be told so."""
        if self._closed:
            self._refuse(channel, message, messages.RefusalKind.SUBMIT, self._closed)
            return None
        spec = message.spec
        counts = {kind: n for kind, n in spec.resources.devices.items() if n}
        unknown = self._devices.unknown(counts)
        if unknown:
            self._refuse(channel, message, messages.RefusalKind.DEVICES, " ".join(unknown))
            return None
        job_id = self._new_id()
        self._on_submit()

        def answer(words: str, warnings: tuple[str, ...]) -> None:
            entry = self._table.get(job_id)
            if words or entry is None:
                self._refuse(channel, message, messages.RefusalKind.SUBMIT, words)
                return
            pids = tuple(p.pid for p in entry.processes if p.pid is not None)
            accepted = messages.Accepted(
                number=message.number, job_id=job_id, pids=pids, warnings=warnings
            )
            self._send_about(entry, accepted)

        launch = Launch(
            job_id=job_id,
            spec=spec,
            environ=environment(message.environ, spec),
            cwd=spec.cwd or message.cwd,
            attributes=message.attributes,
            owner=channel.owner,
            answer=answer,
        )
        allocation: Allocation | None = None
        if counts:
            try:
                allocation = self._devices.request(job_id, counts, spec.name)
            except ResourceError as error:
                # the submitter does not know that id
                words = str(error).replace(repr(job_id), repr(spec.name))
                self._refuse(channel, message, messages.RefusalKind.SUBMIT, words)
                return None
        if counts and allocation is None:
            self._hold(channel, message, launch)
            return None
        if allocation is not None:
            launch = values.evolve(launch, grants=self._devices.grants(allocation))
        entry = self._table.add(job_id, owner=channel.owner, processes=spec.processes)
        entry.held = []
        self._runner.start(launch)
        return entry

    def _hold(self, channel: Channel, message: messages.Submit, launch: Launch) -> None:
        foreground = launch.spec.foreground
        self._waiting[launch.job_id] = values.evolve(launch, accepted=True, foreground=foreground)
        self._table.add(
            launch.job_id,
            owner=channel.owner,
            processes=launch.spec.processes,
            waiting=self._devices.reason(launch.job_id),
        )
        channel.send(messages.Accepted(number=message.number, job_id=launch.job_id))
        self._runner.hold(launch)
        self._await_others()

    def _signal(self, channel: Channel, message: messages.Signal) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.signal(entry, message.process, message.signum, group=message.group)
        channel.send(messages.Done(number=message.number))

    def _interrupt(self, channel: Channel, message: messages.Interrupt) -> None:
        def act() -> None:
            entry = self._entry(channel, message.job_id)
            sent = entry is not None and signal.SIGINT not in entry.sent_signals
            if entry is not None and sent:
                self._runner.interrupt(entry)
            channel.send(messages.Done(number=message.number, sent=sent))

        self._settle_interrupts(act)

    def _terminate(self, channel: Channel, message: messages.Terminate) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.terminate(entry, message.grace)
        channel.send(messages.Done(number=message.number))

    def _kill(self, channel: Channel, message: messages.Kill) -> None:
        entry = self._entry(channel, message.job_id)
        if entry is not None:
            self._runner.kill(entry)
        channel.send(messages.Done(number=message.number))

    def _preload(self, channel: Channel, message: messages.Preload) -> None:
        modules = tuple(name for name in message.modules if is_fibers(name))
        if channel.owner is None and modules != message.modules:
            if len(self._table):
                # jobs would wait for their signals and ends meanwhile, and end with this process where an import
                # ends it; so the next supervisor imports them
                self._retire((), lambda: channel.send(messages.Done(number=message.number)))
                return
            modules = message.modules
            if message.cwd is not None:
                with contextlib.suppress(OSError):
                    os.chdir(message.cwd)
        # a process in a job has no other supervisor, and what it asks for might retire this one
        preloaded = self._preload_modules(modules, message.environ)
        done = messages.Done(number=message.number, words=preloaded.failures)
        reply = functools.partial(channel.send, done)
        if preloaded.excluded:
            self._retire(preloaded.excluded, reply)
        else:
            reply()

    def _offer(self, channel: Channel, message: messages.Devices) -> None:
        try:
            self._devices.offer(message.devices, message.providers)
        except ResourceError as error:
            self._refuse(channel, message, messages.RefusalKind.SUBMIT, str(error))
            return
        channel.send(messages.Done(number=message.number))

    def _end_all(self, channel: Channel, message: messages.EndAll) -> None:
        def act() -> None:
            self._ending.append((channel, message.number))
            for job in self._table.owned_by(channel.owner):
                self._runner.kill(job)
            self._answer_endings()

        # what was submitted before is answered before
        self._settle_interrupts(act)

    def _shutdown(self, channel: Channel, message: messages.Shutdown) -> None:
        if channel.owner is not None:
            words = f"only the master of a run ends its supervisor, not {channel.owner[0]}"
            self._refuse(channel, message, messages.RefusalKind.SUBMIT, words)
            return
        self._on_shutdown(lambda: channel.send(messages.Done(number=message.number)))

    def _entry(self, channel: Channel, job_id: str) -> JobEntry | None:
        entry = self._table.get(job_id)
        return entry if entry is not None and entry.owner == channel.owner else None

    def _refuse(
        self, channel: Channel, request: messages.Request, kind: messages.RefusalKind, words: str
    ) -> None:
        channel.send(messages.Refused(number=request.number, kind=kind, words=words))

    def _new_id(self) -> str:
        while True:
            job_id = os.urandom(4).hex()
            if job_id not in self._ids:
                self._ids.add(job_id)
                return job_id


def _typed(
    kind: type[_R], handler: Callable[[Channel, _R], None]
) -> Callable[[Channel, object], None]:
    def call(channel: Channel, message: object) -> None:
        assert isinstance(message, kind)
        handler(channel, message)

    return call


class Server:
    """Supervisor of one run on one host.

    Args:
        options: its options.
        channel: descriptor of the master's channel, non-blocking.
        interrupts: the process that reports SIGINT to the master's process group, as
            ``interrupts.leave_group`` gives it; unused where jobs are detached.
        descriptor_limit: soft limit of open files that jobs are to have.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        channel: int,
        *,
        interrupts: tuple[int, int, int],
        descriptor_limit: int | None = None,
    ) -> None:
        self._options = options
        self._timing = options.timing
        self._loop = Loop()
        self._descriptors = Descriptors()
        self._descriptors.own(self._loop.fileno())
        self._table = JobTable(options.host)
        self._channels: dict[Owner, Channel] = {}
        self._sinks = () if options.detached else self._open_sinks()
        self._journal = Journal(options.run_directory, self._notice)
        self._runner = JobRunner(
            options,
            loop=self._loop,
            descriptors=self._descriptors,
            table=self._table,
            journal=lambda _: self._journal,
            sinks=lambda _: self._sinks,
            descriptor_limit=descriptor_limit,
            on_changed=self._on_changed,
            on_channel=self._open_channel,
            on_process_end=self._on_process_end,
            on_job_end=self._on_job_end,
            on_notice=self._notice,
        )
        account = HostAccount(
            options.run_directory, f"run {options.run_id}", descriptors=self._descriptors
        )
        self._request_handler = RequestHandler(
            self._table,
            self._runner,
            known_ids=read_ids(options.run_directory),
            on_submit=self._on_submit,
            on_changed=self._on_changed,
            send_about=self._send_about,
            settle_interrupts=self._settle_interrupts,
            on_shutdown=self._end,
            preload=self._preload,
            retire=self._retire,
            devices=DeviceQueue(account),
            look_again=lambda look: self._loop.call_later(self._timing.device_retry, look),
        )
        self._idle: Timer | None = None
        self._master: kernel.ProcessWatch | None = None
        self._frozen = False
        self._closing = False
        self._is_retired = False
        self._finished = False
        self._replies: list[Callable[[], None]] = []
        self._remove = False
        self._interrupts: Interrupts | None = None
        if not options.detached:
            self._interrupts = Interrupts(
                interrupts,
                loop=self._loop,
                descriptors=self._descriptors,
                on_interrupt=self._on_interrupt,
                answer_timeout=self._timing.interrupt_answer,
            )
        self._open_channel(None, channel)

    def serve(self, preloaded: Preloaded) -> None:
        """Serve until there is nothing left to do.

        Args:
            preloaded: what became of the modules to preload.

        Raises:
            InChild: in each forked child.
        """
        kernel.adopt_orphans()
        self._watch_signals()
        self._watch_master()
        with contextlib.suppress(FileExistsError):
            Path(self._options.run_directory, "logs").mkdir(0o700)
        journal = self._journal.open()
        if journal is not None:
            self._descriptors.own(journal)
        hello = messages.Hello(pid=os.getpid(), failures=preloaded.failures)
        if preloaded.excluded:
            self._retire(preloaded.excluded, lambda: self._send(None, hello))
        else:
            self._send(None, hello)
        while not self._finished:
            self._loop.run_once()

    def leave_child(self) -> None:
        """In a forked child: close everything that is the supervisor's; its objects are kept."""
        signal.set_wakeup_fd(-1)
        self._descriptors.close_all()

    # -- the master and other events from outside ---------------------------------------------

    def _watch_signals(self) -> None:
        def on_signals(signums: bytes) -> None:
            if signal.SIGTERM in signums:
                self._end()
            self._runner.reap()

        for end in self._loop.on_signals((signal.SIGCHLD, signal.SIGTERM), on_signals):
            self._descriptors.own(end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_interrupt(self) -> None:
        for entry in self._table:
            self._runner.interrupt_from_terminal(entry)

    def _settle_interrupts(self, action: Callable[[], None]) -> None:
        if self._interrupts is None:
            action()
        else:
            self._interrupts.settle(action)

    def _watch_master(self) -> None:
        master = self._options.master
        if master is None:
            return
        try:
            self._master = kernel.ProcessWatch(master)
        except ProcessLookupError:
            self._on_master_end()
            return
        except OSError:
            # this system cannot do that: the end of the master's channel has to do
            return
        self._descriptors.own(self._master.fileno())
        self._loop.on_readable(self._master.fileno(), self._on_master_end)
        if os.getppid() != master:
            # it died before it could be watched, and the number may be another's by now
            self._on_master_end()

    def _on_master_end(self) -> None:
        if self._master is not None:
            self._loop.forget(self._master.fileno())
        self._remove = self._options.remove_directory
        self._end()

    # -- channels -----------------------------------------------------------------------------

    def _open_channel(self, owner: Owner, descriptor: int) -> None:
        self._channels[owner] = Channel(
            self._descriptors.own(descriptor),
            owner=owner,
            loop=self._loop,
            descriptors=self._descriptors,
            on_message=self._on_message,
            on_end=self._on_channel_end,
        )

    def _on_message(self, channel: Channel, message: object) -> None:
        self._request_handler.handle(channel, message)

    def _on_channel_end(self, channel: Channel, reason: str) -> None:
        self._channels.pop(channel.owner, None)
        if reason:
            self._notice(f"supervisor {os.getpid()} closed a channel: {reason}")
        if channel.owner is not None:
            return
        # no proof that the master is dead: its jobs live as long as it does. Where its death
        # cannot be seen, this is all there is to go by.
        if self._master is None and not self._options.detached:
            self._on_master_end()
        elif not len(self._table):
            self._finish_after_master()

    def _send(self, owner: Owner, message: object) -> None:
        channel = self._channels.get(owner)
        if channel is not None:
            channel.send(message)

    def _notice(self, words: str) -> None:
        if None in self._channels:
            self._send(None, messages.Notice(words=words))
        else:
            # the log of a detached supervisor, or the terminal that a master left
            with contextlib.suppress(OSError):
                os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))

    # -- jobs ---------------------------------------------------------------------------------

    def _on_submit(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._frozen:
            # objects that exist now are shared with all children, and stay so
            self._frozen = True
            gc.freeze()
            gc.enable()

    def _on_changed(self, entry: JobEntry) -> None:
        status = self._table.status(entry.id)
        self._send_about(entry, messages.StatusChanged(job_id=entry.id, status=status))

    def _send_about(self, entry: JobEntry, message: object) -> None:
        if entry.held is None:
            self._send(entry.owner, message)
        else:
            entry.held.append(message)

    def _on_process_end(self, owner: Owner) -> None:
        channel = self._channels.pop(owner, None)
        if channel is not None:
            channel.close()
        for job in self._table.owned_by(owner):
            self._runner.kill(job)

    def _on_job_end(self, job_id: str) -> None:
        self._request_handler.job_ended(job_id)
        if len(self._table):
            return
        if self._closing:
            self._finish()
        elif self._is_retired:
            self._leave()
        elif None not in self._channels:
            self._finish_after_master()
        elif self._options.idle_exit is not None:
            self._idle = self._loop.call_later(self._options.idle_exit, self._on_idle)

    def _on_idle(self) -> None:
        master = self._channels.get(None)
        if master is not None and not master.is_idle:
            self._idle = self._loop.call_later(self._options.idle_exit or 0.0, self._on_idle)
        elif not len(self._table):
            self._leave()

    def _preload(self, modules: Iterable[str], environ: Mapping[str, str] | None) -> Preloaded:
        master = self._channels.get(None)
        if master is None or all(map(is_fibers, modules)):
            return Preloaded(preload_fibers(modules, environ), ())
        return _preload_for(self._options, modules, environ, master.fileno(), master.send)

    def _retire(self, modules: tuple[str, ...], reply: Callable[[], None]) -> None:
        """Take no more jobs of the master's, and end after the last."""
        # told first: whoever gets the reply may submit a job
        self._is_retired = True
        self._send(None, messages.Retired(modules))
        reply()
        if not len(self._table):
            self._leave()

    def _leave(self) -> None:
        self._send(None, messages.Exiting())
        self._finish()

    # -- the end ------------------------------------------------------------------------------

    def _open_sinks(self) -> tuple[Sink, Sink]:
        def resume() -> None:
            self._runner.resume_output()

        return (
            Sink(1, self._loop, self._descriptors, resume),
            Sink(2, self._loop, self._descriptors, resume),
        )

    def _end(self, reply: Callable[[], None] | None = None) -> None:
        """End all jobs, then the supervisor; the reply is given in between."""
        if reply is not None:
            self._replies.append(reply)
        if not self._closing:
            self._closing = True
            self._request_handler.close("the supervisor of this run is ending")
            if self._interrupts is not None:
                # it ends while the jobs do
                self._interrupts.close()
            self._loop.call_later(self._timing.kill, self._finish)
        for job in self._table:
            self._runner.kill(job)
        if not len(self._table):
            self._finish()

    def _finish_after_master(self) -> None:
        """Finish without jobs and channel: the end of a master that was killed is seen a moment later.

        What it left is removed then. One that lives has closed the channel, and is not waited for long.
        """
        if self._master is None:
            self._finish()
        else:
            self._loop.call_later(self._timing.supervisor_exit, self._finish)

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        orphans.end_descendants(self._timing.kill)
        self._runner.close()
        for sink in self._sinks:
            sink.drain(self._timing.flush)
        if self._remove:
            _remove(self._options.run_directory)
        for reply in self._replies:
            reply()
        for channel in tuple(self._channels.values()):
            channel.flush(self._timing.flush)
            channel.close()


def _remove(directory: str) -> None:
    """Remove a run's directory, unless it has detached jobs."""
    description = rundir.describe(Path(directory))
    if description is None or not description.get("detached"):
        import shutil

        rundir.unlink_blocks(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _preload_for(
    options: SupervisorOptions,
    modules: Iterable[str],
    environ: Mapping[str, str] | None,
    channel: int,
    send: Callable[[object], None],
) -> Preloaded:
    """Import modules; meanwhile a thread ends this process with its master or on request, however long that takes.

    After a while the thread says on standard error what is being imported.

    Args:
        options: the supervisor's.
        modules: their names.
        environ: see :func:`~fiber._agent.supervisor.preload.preload`.
        channel: descriptor of the master's channel.
        send: sends the master a message.
    """
    importing = [""]

    def on_import(name: str) -> None:
        importing[0] = name
        send(messages.Importing(name))

    try:
        master = None if options.master is None else kernel.ProcessWatch(options.master)
    except OSError:
        # it has ended, or cannot be watched, which the server sees to once it serves
        master = None
    if master is None:
        return preload(modules, environ, on_import=on_import)
    done, finish = os.pipe()
    watching = threading.Thread(
        target=_watch_imports, args=(options, master, channel, done, importing)
    )
    watching.start()
    try:
        return preload(modules, environ, on_import=on_import)
    finally:
        # a word, since a process that an import has forked may keep this end open
        os.write(finish, b"d")
        os.close(finish)
        watching.join()
        os.close(done)
        master.close()


def _watch_imports(
    options: SupervisorOptions,
    master: kernel.ProcessWatch,
    channel: int,
    done: int,
    importing: Sequence[str],
) -> None:
    poll = select.poll()
    for watched in (master.fileno(), done):
        poll.register(watched, select.POLLIN)
    # a living master that wants this process to end sends no more, and reads until it has ended
    half_closed = getattr(select, "POLLRDHUP", 0)
    poll.register(channel, half_closed)
    timeout: float | None = 1000 * options.timing.import_notice
    while True:
        events = dict(poll.poll(timeout))
        if done in events:
            return
        if not events:
            timeout = None
            words = (
                f"fiber: the import of {importing[0]} once for all processes has taken "
                f"{options.timing.import_notice:.0f} s so far; fiber.set_forkserver_preload([]) before the first "
                "process is started leaves it to each process\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, words.encode())
        elif master.fileno() in events or events[channel] == half_closed:
            orphans.end_descendants(options.timing.kill)
            if master.fileno() in events and options.remove_directory:
                _remove(options.run_directory)
            os._exit(1)
        else:
            # a closed channel is no proof that the master has ended
            poll.unregister(channel)


def main(descriptor: int, reporter: tuple[int, int, int], *, early: bool = False) -> NoReturn:
    """Run a supervisor on a channel, then end the process.

    Args:
        descriptor: the channel.
        reporter: from :func:`~fiber._agent.supervisor.interrupts.fork_reporter`.
        early: True where the options may take a while to come.
    """
    interrupts = leave_group(reporter)
    os.set_inheritable(descriptor, False)
    if early:
        from fiber._agent.instructions import PRELOAD

        preload_fibers(PRELOAD)
    options = _read_options(descriptor)
    if options.detached:
        # no terminal interrupts what outlives the program
        for end in interrupts[:2]:
            os.close(end)
        if os.fork():
            # the starter waits for the first of the two only
            os._exit(0)
        os.setsid()
        _leave_terminal(options.run_directory)
    kernel.set_title(DETACHED_TITLE if options.detached else SUPERVISOR_TITLE)
    limit = raise_limit_to_hard()
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        # where the program ignores them: whether an import does so could not be seen
        signal.signal(signum, signal.SIG_DFL)
    if options.argv:
        sys.argv[:] = options.argv
    preloaded = Preloaded(preload_fibers(options.essential, options.environ), ())
    if options.preload:

        def send(message: object) -> None:
            with contextlib.suppress(OSError):
                os.write(descriptor, messages.encode(message))

        more = _preload_for(options, options.preload, None, descriptor, send)
        preloaded = values.evolve(more, failures={**preloaded.failures, **more.failures})
    try:
        os.set_blocking(descriptor, False)
        server = Server(options, descriptor, interrupts=interrupts, descriptor_limit=limit)
        try:
            server.serve(preloaded)
        except InChild as child:
            plan = child.plan
            server.leave_child()
        else:
            os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    become(plan)


def _read_options(descriptor: int) -> SupervisorOptions:
    # exactly one frame: what follows are requests, which the server reads
    header = _exactly(descriptor, HEADER.size)
    decoder = Decoder()
    decoder.feed(header + _exactly(descriptor, HEADER.unpack(header)[0]))
    options = next(decoder.messages())
    assert isinstance(options, SupervisorOptions)
    return options


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    starter = os.getppid()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(data) < size:
        # a fork of the starter's may hold the other end: then its death brings no end of file
        while not poll.poll(1000):
            if os.getppid() != starter:
                os._exit(0)
        more = os.read(descriptor, size - len(data))
        if not more:
            # the process that started this one has ended meanwhile
            os._exit(0)
        data += more
    return data


def _leave_terminal(run_directory: str) -> None:
    # a reader of the starter's output must not wait for the end of this process
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(Path(run_directory, "supervisor.log"), flags, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
