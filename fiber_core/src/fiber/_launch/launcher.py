"""Launcher: submits process objects as jobs, gives them their work, follows them to their end."""

from __future__ import annotations

import copyreg
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import context
from typing import TYPE_CHECKING, Any

from fiber._agent import instructions as job_instructions
from fiber._agent import rundir
from fiber._agent.lease import LeaseTable
from fiber._agent.supervisor import preload
from fiber._agent.supervisor.start import python
from fiber._base.interpreter import working_folder
from fiber._base.log import lazy_logger
from fiber._launch import module_server, status_merge
from fiber._launch.child import ORPHANED, Child
from fiber._launch.preparation import (
    Program,
    added_by_libraries,
    ignores_interrupts,
    job_environment,
)
from fiber._launch.wills import WillService
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.backend_parts.outage import Outage
from fiber.exceptions import BackendUnavailableError, FiberError, WireError
from fiber.model import (
    Gang,
    JobSpec,
    JobState,
    JobStatus,
    Reason,
    ReasonKind,
    ResourceRequest,
    Volume,
)

if TYPE_CHECKING:
    from fiber._base.threads import Timer
    from fiber._launch.context import LaunchContext
    from fiber._launch.remote_monitor import RemoteJobMonitor
    from fiber._wire.endpoint import Peer
    from fiber.model import Job

log = lazy_logger()

#: most bytes of work that a process gets with its instructions: the supervisor that forks it reads and
#: keeps them
_MOST_SENT_ALONG = 2**16
#: reasons of ends by which a host is taken for lost
_LOST = frozenset({ReasonKind.LEASE, ReasonKind.NODE_LOST})


class Launcher:
    """Starts the children of one process; a thread reads their backend's events."""

    def __init__(self, runtime: LaunchContext) -> None:
        self._runtime = runtime
        self._timing = runtime.timing
        self._children: dict[str, Child] = {}
        self._by_job: dict[str, Child] = {}
        # events of jobs whose submit() has not returned yet
        self._early: dict[str, list[JobStatus]] = {}
        self._payloads: dict[str, tuple[list[frames.Buffer], Child]] = {}
        # children that have ended, by a process of theirs whose connection is still to be read
        self._unread: dict[str, Child] = {}
        # processes that run and have not sent their hello
        self._hello_timers: dict[str, Timer] = {}
        #: jobs that the platform was asked to end; one that loses hosts reports their jobs sooner
        self._ending: LeaseTable[str] = LeaseTable(
            lease=self._timing.unconfirmed,
            silence=self._timing.unconfirmed,
            timing=self._timing,
        )
        self._timer: Timer | None = None
        #: hosts that were lost, and when
        self._lost_hosts: dict[str, float] = {}
        self._lock = threading.Lock()
        #: True once the platform has accepted a job, as it did for every process but the master: an
        #: error after that is an outage
        self._has_answered = not runtime.is_master
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._preloads = preload.PreloadRequests(
            runtime.backend, main=module_server.libraries_of_main if runtime.is_master else None
        )
        self._program = Program()
        self._monitor = _monitor(runtime, self)
        runtime.endpoint.serve(0, self)
        WillService(self, runtime)

    def launch(
        self,
        process: Any,
        *,
        resources: ResourceRequest | None = None,
        image: str | None = None,
        volumes: tuple[Volume, ...] = (),
        processes: int = 1,
        gang: Gang | None = None,
        drains: bool = False,
        waits: bool = True,
        foreground: bool = False,
        on_status: Callable[[Child, JobStatus], None] | None = None,
    ) -> Child:
        """Pickle a process object and submit it as a job.

        A platform that has answered before and cannot be asked now is waited for.

        Args:
            process: a ``multiprocessing.process.BaseProcess`` that has not been started.
            resources: what the job needs.
            image: image, where the backend runs images.
            volumes: storage that the job sees, where the backend mounts any.
            processes: how many processes the job has, all running the same object.
            gang: the jobs that it is to start with.
            drains: True where ``on_status`` has its processes exit when it is draining.
            waits: False for a caller that retries during an outage itself.
            foreground: True where what interrupts this process's group is to interrupt it too.
            on_status: called with each status, on the thread that learned of it.

        Raises:
            Exception: what pickling raised, before anything was submitted.
            SubmitError: the platform refused the job.
            BackendUnavailableError: the platform could not be asked.
        """
        child, spec = self._prepare(
            process,
            resources=resources,
            image=image,
            volumes=volumes,
            processes=processes,
            gang=gang,
            drains=drains,
            foreground=foreground,
            on_status=on_status,
        )
        try:
            self._watch()
            self._preloads.send([spec])
            job = self._submit(spec, waits=waits)
        except BaseException:
            self.forget(child)
            raise
        self._accepted(child, job)
        return child

    @property
    def takes_many(self) -> bool:
        """True where :meth:`launch_many` is better than :meth:`launch` again and again."""
        return self._runtime.takes_many

    def launch_many(
        self, jobs: Sequence[tuple[Any, dict[str, Any]]], *, waits: bool = True
    ) -> list[Child | BaseException]:
        """Pickle process objects and submit them as jobs, several in one call of the backend.

        Args:
            jobs: process objects, each with arguments of :meth:`launch`.
            waits: see :meth:`launch`; several are not waited for.

        Returns:
            for each its child, or the error for which it was not submitted. A process that has one was
            started.

        Raises:
            Exception: what pickling raised, before anything was submitted, or the backend for all.
        """
        if len(jobs) == 1:
            found: list[Child | BaseException] = [
                self.launch(process, waits=waits, **options) for process, options in jobs
            ]
        else:
            found = self._launch_many(jobs)
        for (process, _), child in zip(jobs, found, strict=True):
            if not isinstance(child, BaseException):
                process._started_as(child)  # noqa: SLF001 - no name that subclasses could have
        return found

    def _launch_many(
        self, jobs: Sequence[tuple[Any, dict[str, Any]]]
    ) -> list[Child | BaseException]:
        prepared: list[tuple[Child, JobSpec]] = []
        try:
            for process, options in jobs:
                prepared.append(self._prepare(process, **options))
            self._watch()
            specs = [spec for _, spec in prepared]
            self._preloads.send(specs)
            answers = self._runtime.submit_many(specs)
        except BaseException:
            for child, _ in prepared:
                self.forget(child)
            raise
        found: list[Child | BaseException] = []
        for (child, _), answer in zip(prepared, answers, strict=True):
            if isinstance(answer, BaseException):
                self.forget(child)
                found.append(answer)
            else:
                self._has_answered = True
                self._accepted(child, answer)
                found.append(child)
        return found

    def _accepted(self, child: Child, job: Job) -> None:
        child.submitted(job)
        self._catch_up(job, child)

    def _prepare(
        self,
        process: Any,
        *,
        on_status: Callable[[Child, JobStatus], None] | None = None,
        resources: ResourceRequest | None = None,
        image: str | None = None,
        volumes: tuple[Volume, ...] = (),
        processes: int = 1,
        gang: Gang | None = None,
        drains: bool = False,
        foreground: bool = False,
    ) -> tuple[Child, JobSpec]:
        """Make the child and the spec of a job that is about to be submitted."""
        ident = os.urandom(4).hex()
        image = image if image is not None else self._default_image()
        child = Child(
            ident,
            process.name,
            self,
            processes=processes,
            foreground=foreground,
            image=image,
            on_status=on_status,
        )
        try:
            segments = self._payload(process, child)
        except BaseException:
            child.release()
            raise
        work = self._sent_along(segments)
        instructions = job_instructions.Instructions(
            credentials=self._runtime.endpoint.credentials,
            urls=tuple(self._runtime.urls()),
            ident=ident,
            directory=str(self._runtime.directory),
            processes=processes,
            max_frame=self._runtime.config.max_frame,
            time_scale=self._runtime.timing.scale,
            parent=None if work is None else self._runtime.hello,
            work=work,
        )
        spec = JobSpec(
            run_id=self._runtime.run_id,
            name=process.name,
            argv=(
                python(),
                *_interpreter_flags(),
                "-m",
                job_instructions.MODULE,
            ),
            entry=job_instructions.ENTRY,
            env=job_environment(self._runtime),
            cwd=working_folder(),
            private=instructions.encode(),
            resources=resources if resources is not None else ResourceRequest(),
            image=image,
            volumes=volumes,
            processes=processes,
            gang=gang,
            foreground=foreground,
            log_prefix=self._runtime.config.log_prefix,
            labels={"process": process.name, "parent": self._runtime.ident},
            urls=instructions.urls,
            ident=ident,
            avoid_hosts=self._avoided_hosts(),
        )
        if self._monitor is not None:
            spec = self._monitor.with_supervisor(spec, instructions, drains=drains)
            self._monitor.expect(child)
        with self._lock:
            self._children[ident] = child
            for index in () if work is not None else range(processes):
                self._payloads[instructions.ident_of(index)] = (segments, child)
        return child, spec

    def _sent_along(self, segments: list[frames.Buffer]) -> bytes | None:
        """The work as bytes, where it goes with the instructions; None: the process asks for it."""
        # a remote job's supervisor, which has the same instructions, starts its processes later
        if self._monitor is not None or sum(map(len, segments)) > _MOST_SENT_ALONG:
            return None
        return frames.joined(segments)

    def _submit(self, spec: JobSpec, *, waits: bool) -> Job:
        outage = Outage(self._timing)
        while True:
            began = time.monotonic()
            try:
                job = self._runtime.submit(spec)
            except BackendUnavailableError as error:
                now = time.monotonic()
                outage.failed(error, began, now)
                if outage.is_over or not (waits and self._has_answered) or self._runtime.closing:
                    raise
            else:
                self._has_answered = True
                return job
            notice = outage.notice(now)
            if notice is not None:
                log.warning("fiber: %s: %s", spec.name, notice)
            self._closing.wait(max(0.0, outage.retry_at - now))

    def _avoided_hosts(self) -> tuple[str, ...]:
        """Hosts that were lost lately; their platform may take them for healthy for a while."""
        since = time.monotonic() - self._timing.avoid_lost_host
        with self._lock:
            self._lost_hosts = {h: when for h, when in self._lost_hosts.items() if when > since}
            return tuple(sorted(self._lost_hosts))

    def _catch_up(self, job: Job, child: Child) -> None:
        # statuses from before submit() returned are delivered first, and in order
        while True:
            with self._lock:
                early = self._early.pop(job.id, None)
                if early is None:
                    if child.ident in self._children:
                        self._by_job[job.id] = child
                    return
            for status in early:
                self._observed(job, child, status)

    def _default_image(self) -> str | None:
        # the setting is ignored where nothing runs in images
        runtime = self._runtime
        return runtime.config.image if runtime.info.capabilities.images else None

    def _payload(self, process: Any, child: Child) -> list[frames.Buffer]:
        preparation = self._program.prepare(process.name)
        if self._runtime.info.capabilities.same_host:
            preparation.update(added_by_libraries(process.name))
        context.set_spawning_popen(child)  # type: ignore[arg-type] # it has what pickling needs
        try:
            with codec.pickling_into(child):
                # apart: the child loads its __main__ before it unpickles the object
                pickled = frames.joined(codec.dumps(process))
            payload = {
                "preparation": preparation,
                "process": pickled,
                "config": self._runtime.config,
                "modules": module_server.own_names(),
                "ignores_interrupts": ignores_interrupts(),
            }
            if self._monitor is not None:
                payload = self._monitor.payload(payload)
            return codec.dumps(payload)
        finally:
            context.set_spawning_popen(None)

    # -- service of target 0: children fetch their work

    def on_message(self, peer: Peer, message: frames.Message) -> None:
        """Send a child its process object, or the answer to a query for a module."""
        if self._monitor is not None and self._monitor.is_supervisor(peer.ident):
            self._monitor.on_message(peer, message)
            return
        if message.kind is not Kind.CALL:
            return
        if len(message.body):
            self._answer_module_query(peer, message)
            return
        with self._lock:
            entry = self._payloads.pop(peer.ident, None)
        if entry is None:
            peer.send(Kind.ERROR, 0, message.id)
            return
        segments, child = entry
        child.connected(peer)
        with self._lock:
            if not self._awaits_hello(child):
                self._cancel_timer(child)
        peer.send(Kind.REPLY, 0, message.id, segments)

    def _answer_module_query(self, peer: Peer, message: frames.Message) -> None:
        if self._monitor is not None and self._monitor.code_server is not None:

            def answer(found: bytes) -> None:
                peer.send(Kind.REPLY, 0, message.id, [found])

            self._monitor.code_server.submit(bytes(message.body), answer)
            return
        try:
            name = str(json.loads(bytes(message.body))["module"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            msg = "a question for a module makes no sense"
            raise WireError(msg) from error
        peer.send(Kind.REPLY, 0, message.id, [json.dumps(module_server.describe(name)).encode()])

    def on_peer_lost(self, peer: Peer) -> None:
        """Note a lost connection; how a local child ended is reported by the backend."""
        if self._monitor is not None:
            self._monitor.on_peer_lost(peer)
        if (child := self._unread.pop(peer.ident, None)) is not None:
            self._release(child)

    # -- events

    def _watch(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="fiber-events", daemon=True)
                self._thread.start()

    def _read(self) -> None:
        runtime = self._runtime
        try:
            for job, status in runtime.backend.events(runtime.run_id):
                runtime.router.observed(job, status)
                with self._lock:
                    child = self._by_job.get(job.id)
                    if child is None:
                        if self._monitor is not None and self._monitor.deliver_proxied(job, status):
                            continue
                        self._early.setdefault(job.id, []).append(status)
                        continue
                self._observed(job, child, status)
        except FiberError as error:
            with self._lock:
                has_children = bool(self._by_job)
            # the call that starts the first child raises the same error
            if has_children and not runtime.closing:
                log.error("fiber: the backend's events ended; children are lost from sight: %s", error)  # noqa: TRY400  # fmt: skip
        except Exception:
            if not runtime.closing:
                log.exception("fiber: the backend's events ended; children are lost from sight")
        finally:
            with self._lock:
                # children that are launched from now on get a new stream
                self._thread = None
                children = list(self._children.values())
            for child in children:
                self._changed(child.job, child, ORPHANED)

    def _observed(self, job: Job, child: Child, status: JobStatus) -> None:
        found = status if self._monitor is None else self._monitor.observed(child, status)
        if found is not None:
            self._changed(job, child, found)

    def early_statuses(self, job: Job) -> list[JobStatus]:
        """Remove and return the statuses so far of a job that was submitted for a child."""
        self._watch()
        with self._lock:
            return self._early.pop(job.id, [])

    def on_report(self, child: Child, status: JobStatus) -> None:
        """Note a status from a child's supervisor, or from the end of its lease."""
        self._changed(child.job, child, status)

    def _changed(self, job: Job | None, child: Child, status: JobStatus) -> None:
        previous = child.status
        host = status.host or child.host
        if host and status.reason is not None and status.reason.kind in _LOST:
            # before the owner hears of it, and starts another one
            with self._lock:
                self._lost_hosts[host] = time.monotonic()
        try:
            child.changed(status)
        except Exception:
            log.exception("fiber: what follows a change of %s failed", child.name)
        if job is not None:
            self._runtime.notify("fiber_job_changed", job=job, previous=previous, current=status)
        if status.state.is_terminal:
            self.forget(child)
        elif status.state is JobState.RUNNING:
            self._start_hello_timer(child)

    def _start_hello_timer(self, child: Child) -> None:
        """Begin ``start_timeout`` for a process that runs and has not sent its hello."""
        with self._lock:
            if child.ident not in self._hello_timers and self._awaits_hello(child):
                self._hello_timers[child.ident] = self._runtime.reactor.call_later(
                    self.start_timeout, lambda: self._give_up(child)
                )

    def _awaits_hello(self, child: Child) -> bool:
        return any(owner is child for _, owner in self._payloads.values())

    def _give_up(self, child: Child) -> None:
        with self._lock:
            if self._hello_timers.pop(child.ident, None) is None or not self._awaits_hello(child):
                return
        if child.status is not None and child.status.state is JobState.SUSPENDED:
            self._start_hello_timer(child)
            return
        child.set_start_failure(
            f"it ran for {self.start_timeout:g} s without a word to its parent, and was killed; "
            "is this fiber and this Python installed where it runs, and can it reach its parent?"
        )
        try:
            self.kill(child)
        except BackendUnavailableError as error:
            # its waiters get an end all the same; should it still come up, it is refused
            reason = Reason(ReasonKind.LEASE)
            lost = status_merge.lost(child.status, reason, host=child.host, words=str(error))
            self._changed(child.job, child, lost)

    def forget(self, child: Child) -> None:
        """Remove a child that has ended, or was never submitted."""
        with self._lock:
            self._children.pop(child.ident, None)
            self._ending.drop(child.ident)
            self._cancel_timer(child)
            if child.job is not None:
                self._by_job.pop(child.job.id, None)
            for ident in [i for i, (_, owner) in self._payloads.items() if owner is child]:
                del self._payloads[ident]
        for index in range(child.processes):
            # one that was killed could not remove its socket, where it had listeners of its own
            rundir.remove_files_of(self._runtime.directory, child.ident_of(index))
        if self._monitor is not None:
            self._monitor.forget(child)
        reactor = self._runtime.reactor
        # after one round of the reactor, in which a connection that it made at last proves itself
        reactor.call_soon(lambda: reactor.call_soon(lambda: self._release(child)))

    def _release(self, child: Child) -> None:
        """Release a child that has ended, once all that it sent was read; on the handler thread.

        Its end is reported by another way than its messages come, and may overtake them. Were the
        end of a pipe that it was given released before it is known to have had it, the pipe would
        end before what was sent through it.
        """
        connected = {peer.ident for peer in self._runtime.endpoint.peers()}
        for index in range(child.processes):
            if (ident := child.ident_of(index)) in connected:
                self._unread[ident] = child
                self._runtime.reactor.call_later(self._timing.farewell, child.release)
                return
        child.release()

    def _cancel_timer(self, child: Child) -> None:
        timer = self._hello_timers.pop(child.ident, None)
        if timer is not None:
            timer.cancel()

    # -- called by children

    @property
    def start_timeout(self) -> float:
        """Seconds from accepted to hello."""
        return self._runtime.config.start_timeout

    def settle_output(self) -> None:
        """Wait until the output of remote children is written, a bounded time."""
        if self._monitor is not None:
            self._monitor.settle_output()

    def signal(self, child: Child, index: int, signum: int) -> None:
        """Send a signal to one of a child's processes."""
        if child.job is None:
            return
        if self._monitor is None:
            self._runtime.backend.signal(child.job, index, int(signum))
        else:
            self._monitor.signal(child, index, signum)

    def pass_interrupt_on(self, child: Child, *, again: bool) -> bool:
        """SIGINT to a child because this process was interrupted; False where nothing was sent."""
        if child.job is None:
            return False
        if self._monitor is None:
            return self._runtime.backend.interrupt(child.job)
        if not again and self._monitor.was_sent(child, signal.SIGINT):
            return False
        if not self._monitor.signal(child, None, signal.SIGINT):
            # its supervisor cannot be reached, or is not there yet
            self._expect_end(child)
            self._runtime.backend.terminate(child.job)
        return True

    def terminate(self, child: Child) -> None:
        """SIGTERM to the child's processes."""
        if child.job is None:
            return
        if self._monitor is None:
            for index in range(child.processes):
                self.signal(child, index, signal.SIGTERM)
        elif not self._monitor.signal(child, None, signal.SIGTERM):
            self._expect_end(child)
            self._runtime.backend.terminate(child.job)

    def kill(self, child: Child) -> None:
        """End the child and all its processes at once."""
        if child.job is None:
            return
        if self._monitor is None or not self._monitor.kill(child):
            self._expect_end(child)
            self._runtime.backend.kill(child.job)

    # -- ends that the platform does not confirm

    def _expect_end(self, child: Child) -> None:
        """Bound the wait for a job that the platform is about to be asked to end.

        A lost host confirms nothing, and a job that never came up has no supervisor that would.
        """
        with self._lock:
            if child.ident not in self._children or child.ident in self._ending:
                return
            self._ending.connected(child.ident, time.monotonic())
            if self._timer is None:
                self._timer = self._runtime.reactor.call_later(
                    self._timing.heartbeat, self._check_unconfirmed
                )

    def _check_unconfirmed(self) -> None:
        with self._lock:
            expired = self._ending.expire(time.monotonic())
            again = len(self._ending) > 0 and not self._runtime.closing
            self._timer = (
                self._runtime.reactor.call_later(self._timing.heartbeat, self._check_unconfirmed)
                if again
                else None
            )
            silent = {
                one.key: self._children[one.key] for one in expired if one.key in self._children
            }
        for child in silent.values():
            if self._monitor is None or not self._monitor.has_lease(child):
                self._end_unconfirmed(child)

    def _end_unconfirmed(self, child: Child) -> None:
        words = (
            "it was to end, and its platform has not confirmed that within "
            f"{self._timing.unconfirmed:g} s"
        )
        log.warning("fiber: %s is given up: %s", child.name, words)
        reason = Reason(ReasonKind.NODE_LOST)
        lost = status_merge.lost(child.status, reason, host=child.host, words=words)
        self._changed(child.job, child, lost)

    def preparation(self) -> dict[str, Any]:
        """Data with which a child loads this program's main module, as ``multiprocessing.spawn`` has it."""
        return self._program.prepare("")

    def child_of(self, ident: str) -> tuple[Child, int] | None:
        """The child that has a process of an identity, and the process's index; None if there is none."""
        job, _, index = ident.partition(".")
        child = self._children.get(job)
        if child is None or not (index or "0").isdecimal():
            return None
        return child, int(index or 0)

    def alive(self) -> list[Child]:
        """Children that have not ended."""
        with self._lock:
            return list(self._children.values())

    def close(self, *, timeout: float = 10.0) -> None:
        """Wait for the events thread; the backend must be closed before."""
        self._closing.set()
        if self._monitor is not None:
            self._monitor.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)


def _monitor(runtime: LaunchContext, launcher: Launcher) -> RemoteJobMonitor | None:
    if runtime.info.capabilities.fork:
        # the backend forks, and is the supervisor itself
        return None
    from fiber._launch.remote_monitor import RemoteJobMonitor

    return RemoteJobMonitor(runtime, launcher.on_report)


def _refuse_stdlib_connections() -> bool:
    """Refuse to pickle the stdlib's connections, which would send a bare descriptor number."""
    from multiprocessing.connection import Connection

    def refuse(connection: Connection) -> tuple[Any, ...]:
        child = context.get_spawning_popen()
        if child is not None:
            child.duplicate_for_child(connection.fileno())
        msg = "a connection of multiprocessing cannot be pickled; use fiber.Pipe"
        raise TypeError(msg)

    copyreg.pickle(Connection, refuse)
    return True


codec.register_when_imported("multiprocessing.connection", _refuse_stdlib_connections)


def _interpreter_flags() -> list[str]:
    import subprocess

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return] # noqa: SLF001 - as spawn does
