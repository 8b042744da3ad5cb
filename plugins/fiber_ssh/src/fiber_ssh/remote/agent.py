"""A host's agent: starts, watches and ends the jobs of one user there; one thread, one loop.

It lives as long as somebody is connected, a job runs or the lease of a run goes on. When a
connection drops its jobs go on; when a run's lease is over they are ended. A heartbeat has the time
at which it was sent, by a clock that also runs while this host sleeps, and the run's owner says which
ones it heard. The lease counts from the last of them: the owner, which counts from when it heard it,
is never sooner.

A :class:`Connection` is one program that talks to the agent, a :class:`Follower` the output of one job on its
way there. Output is only read from the log as the program takes it: one that does not read holds up nobody.
"""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, BinaryIO

from fiber._agent.lease import LeaseTable
from fiber._agent.supervisor.jobs import ExitReport, JobEntry, JobTable, not_started
from fiber._agent.supervisor.journal import JournaledJob
from fiber._agent.supervisor.kernel import adopt_orphans
from fiber._agent.supervisor.messages import Channel, SupervisorOptions
from fiber._agent.supervisor.runner import JobRunner, Launch
from fiber._base import values
from fiber._base.sockets import accept_on
from fiber._base.threads import Loop
from fiber._wire.descriptors import Descriptors
from fiber.backend_parts.liveness import Owner
from fiber.model import JobSpec, JobState, Reason, ReasonKind
from fiber.model.timing import Timing
from fiber_ssh.remote.kernel import bound_port, clock, complain, kill_marked
from fiber_ssh.remote.runs import (
    LEASE,
    Job,
    Run,
    directory_for,
    environ_of,
    load_runs,
    offset_of_tail,
    read_piece,
    spec_of,
)
from fiber_ssh.remote.wire import Data, Message, decoder, pack

#: seconds for an owner whose connection was closed, or who has started this agent: a link that is cut
#: closes none, and who lives dials again at once
_RETURN = 10.0
#: output that is on its way to a program that has not said that it took it
_WINDOW = 512 * 1024
_ENOUGH = 256 * 1024


class Follower:
    """Reads one job's output for one program.

    Args:
        number: what the program calls it.
        job: whose output.
        offset: where to begin.
        tail: only the last so many lines of those there are.
        follow: go on until the job has ended.
    """

    def __init__(
        self, number: int, job: Job, *, offset: int, tail: int | None, follow: bool
    ) -> None:
        self.number = number
        self.job = job
        self.follow = follow
        #: bytes that may be sent
        self.credit = _WINDOW
        self._skip = 0
        if tail is not None and os.path.exists(job.log_path):
            offset, self._skip = offset_of_tail(job.log_path, tail)
        self._file: BinaryIO | None = None
        self._offset = offset

    def next(self) -> tuple[int, bytes, int] | None:
        """Stream, bytes and the offset behind them; None where there is nothing yet."""
        if self._file is None:
            if not os.path.exists(self.job.log_path):
                return None
            self._file = open(self.job.log_path, "rb")  # noqa: SIM115 - closed by close()
            self._file.seek(self._offset)
        found = read_piece(self._file)
        if found is None:
            return None
        stream, data = found
        data, self._skip = data[self._skip :], 0
        return stream, data, self._file.tell()

    @property
    def is_over(self) -> bool:
        """True where nothing more will come, once :meth:`next` has nothing."""
        return not self.follow or self.job.has_ended

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Connection(Channel):
    """The agent's end of a connection.

    Args:
        sock: it; its descriptor is owned by ``descriptors``.
        loop: where it is watched while it is open.
        descriptors: those of the agent.
        hear: called with each message.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Loop,
        descriptors: Descriptors,
        hear: Callable[[Connection, Message], None],
    ) -> None:
        #: the run whose owner it is, if it is one's
        self.owns: str | None = None
        #: when the last heartbeat was sent that it has acknowledged
        self.heard_at = clock()
        #: runs of which it wants to know
        self.watches: set[str] = set()
        self.followers: dict[int, Follower] = {}
        self._is_pumping = False

        def on_message(_: Channel, message: Message | Data) -> None:
            # output goes the other way only
            if isinstance(message, dict):
                hear(self, message)

        # whoever is answered so was accepted by an agent that goes on
        sock.send(b"+")
        super().__init__(
            descriptors.own(sock.detach()),
            owner=None,
            loop=loop,
            descriptors=descriptors,
            on_message=on_message,
            on_room=self.pump,
            encode=pack,
            decoder=decoder(),
        )

    def follow(self, follower: Follower) -> None:
        """Begin to send output."""
        self.unfollow(follower.number)
        self.followers[follower.number] = follower
        self.pump()

    def unfollow(self, number: int) -> None:
        """Send no more of it."""
        follower = self.followers.pop(number, None)
        if follower is not None:
            follower.close()

    def took(self, number: int, count: int) -> None:
        """The program took so many bytes of output."""
        if number in self.followers:
            self.followers[number].credit += count
            self.pump()

    def pump(self) -> None:
        """Send as much output as there is room for; whoever sends calls back where there is more."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            for follower in list(self.followers.values()):
                self._pump(follower)
        finally:
            self._is_pumping = False

    def _pump(self, follower: Follower) -> None:
        while self.is_open and self.waiting < _ENOUGH and follower.credit > 0:
            # asked before the look: what was written until then is seen by it
            over = follower.is_over
            found = follower.next()
            if found is None:
                if over:
                    self.unfollow(follower.number)
                    self.send({"end": follower.number})
                break
            stream, data, offset = found
            follower.credit -= len(data)
            self.send(Data(follower.number, stream, data, offset))

    def close(self) -> None:
        """Close it. Idempotent."""
        super().close()
        for number in list(self.followers):
            self.unfollow(number)


class RequestError(Exception):
    """A request that cannot be met; its kind is the first argument."""


class Agent:
    """Serves connections until nobody needs it; a job of the runner's has one process.

    Args:
        root: its folder.
        listener: where programs connect.
    """

    def __init__(self, root: str, listener: socket.socket) -> None:
        self._root = root
        self._listener = listener
        self._loop = Loop(clock)
        self._runs = {run.id: run for run in load_runs(root)}
        #: of runs that are not over: whose owner may be back, and get jobs that it submits
        self._leases: LeaseTable[str] = LeaseTable(lease=_RETURN, silence=LEASE, strict=True)
        for run in self._runs.values():
            self._leases.connected(run.id, clock(), silence=run.lease)
        self._connections: list[Connection] = []
        #: jobs of the runner
        self._jobs: dict[str, tuple[Run, Job]] = {}
        self._ended: dict[str, tuple[Run, Job]] = {}
        self._owner = Owner.current()
        self._descriptors = Descriptors()
        self._table = JobTable(os.uname().nodename)
        self._runner = JobRunner(
            SupervisorOptions(
                run_id="",
                run_directory=root,
                master=None,
                host=os.uname().nodename,
                tail=0,
                keeps_logs=False,
                offers_channels=False,
            ),
            loop=self._loop,
            descriptors=self._descriptors,
            table=self._table,
            journal=lambda job_id: self._jobs[job_id][0].journal,
            sinks=lambda job_id: self._jobs[job_id][1].sinks,
            descriptor_limit=None,
            on_changed=self._on_changed,
            on_job_end=lambda job_id: self._jobs[job_id][1].close(),
            on_notice=complain,
        )
        # who waits until a run is over: connection, number of the request, run
        self._waiting: list[tuple[Connection, int, Run]] = []
        self._next_beat = 0.0

    def serve(self) -> None:
        """Do all there is to do.

        Raises:
            InChild: in each forked child.
        """
        adopt_orphans()
        self._loop.on_signals([signal.SIGCHLD], lambda _: self._runner.reap())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._listener.setblocking(False)
        accept_on(self._loop, self._listener, self._accepted, pause=Timing().accept_pause)
        # whoever started this agent may be killed before it connects
        latest: float | None = min(clock() + _RETURN, self._due() or math.inf)
        while True:
            self._loop.run_once(latest)
            self._end_leases()
            self._settle()
            self._send_beats()
            if not self._connections and not any(map(self._needs_us, self._runs.values())):
                return
            latest = self._due()

    def _needs_us(self, run: Run) -> bool:
        return bool(run.alive()) or (run.id in self._leases and not run.keeps_anything)

    # -- time

    def _due(self) -> float | None:
        expiry = self._leases.next_expiry()
        if not self._connections:
            return expiry
        return self._next_beat if expiry is None else min(expiry, self._next_beat)

    def _end_leases(self) -> None:
        for expired in self._leases.expire(clock()):
            verdict = ExitReport(
                state=JobState.FAILED,
                reason=Reason(ReasonKind.LEASE),
                exit_code=-signal.SIGKILL,
                message=f"nothing was heard of its owner for {expired.silent:.1f} s",
            )
            for job in self._runs[expired.key].alive(detached=False):
                self._kill(job, verdict)
            for connection in self._connections:
                if connection.owns == expired.key:
                    connection.close()
        for connection in self._connections:
            # one that only looks on, or has released its run: a link that is cut tells nobody
            if connection.owns not in self._leases and clock() - connection.heard_at > LEASE:
                connection.close()

    def _send_beats(self) -> None:
        now = clock()
        if not self._connections or now < self._next_beat:
            return
        for connection in self._connections:
            connection.send({"beat": now})
        shortest = min([LEASE, *(run.lease for run in self._runs.values())])
        self._next_beat = now + min(1.0, shortest / 8)

    # -- jobs

    def _on_changed(self, entry: JobEntry) -> None:
        run, job = self._jobs[entry.id]
        job.update(entry.processes[0])
        if job.has_ended:
            self._ended[job.id] = run, job
        elif job.process.state is not JobState.PENDING:
            self._tell(run, job)

    def _kill(self, job: Job, verdict: ExitReport | None = None) -> None:
        entry = self._table.get(job.id)
        if entry is not None:
            self._runner.kill(entry, verdict)

    def _settle(self) -> None:
        ended, self._ended = self._ended, {}
        if ended:
            # one look at all processes for all jobs that ended
            kill_marked(ended)
        for job_id, (run, job) in ended.items():
            del self._jobs[job_id]
            self._tell(run, job)
        for run in list(self._runs.values()):
            if run.is_condemned and not run.alive():
                run.forget_attached()
                run.is_condemned = False
                self._answer_waiting(run)
                # an owner that is connected, and has not released it, may go on with it
                if not any(c.is_open and c.owns == run.id for c in self._connections):
                    self._leases.drop(run.id)
            if run.id not in self._leases and not run.alive(detached=False):
                run.forget_attached()
                if not run.keeps_anything:
                    self._forget(run)
                self._answer_waiting(run)
        self._connections = [c for c in self._connections if c.is_open or self._dropped(c)]

    def _dropped(self, connection: Connection) -> bool:
        self._waiting = [entry for entry in self._waiting if entry[0] is not connection]
        if not any(c.is_open and c.owns == connection.owns for c in self._connections):
            self._leases.disconnected(str(connection.owns), clock())
        return False

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.id, None)
        run.remove()

    def _answer_waiting(self, run: Run) -> None:
        for connection, number, waited in list(self._waiting):
            if waited is run:
                self._waiting.remove((connection, number, waited))
                connection.send({"id": number, "ok": {}})

    def _tell(self, run: Run, job: Job) -> None:
        for connection in self._connections:
            if connection.is_open and run.id in connection.watches:
                connection.send({"job": job.record})

    # -- connections

    def _accepted(self, sock: socket.socket) -> None:
        self._connections.append(Connection(sock, self._loop, self._descriptors, self._heard))

    def _heard(self, connection: Connection, message: Message) -> None:
        # first: after a sleep of this host, old words of an owner are no proof that it has not given up
        self._end_leases()
        if not connection.is_open:
            return
        number = message.get("id")
        action: Callable[..., Any] | None = getattr(self, f"_do_{message.get('op')}", None)
        try:
            if action is None:
                raise RequestError("protocol", f"unknown request {message.get('op')!r}")
            answer = action(connection, message)
        except RequestError as error:
            kind, words = error.args
            answer = None if number is None else {"error": kind, "words": words}
        except (KeyError, TypeError, ValueError, OSError) as error:
            words = f"{type(error).__name__}: {error}"
            answer = None if number is None else {"error": "failed", "words": words}
        if number is not None and answer is not None:
            connection.send({"id": number, **answer})

    # -- requests; each returns its answer, or None where it comes later

    def _do_join(self, connection: Connection, message: Message) -> Message:
        if message["run"] is None:
            return {"ok": {"jobs": []}}
        run_id = str(message["run"])
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = Run(self._root, run_id)
        for other in self._connections:
            if other.owns == run_id:
                other.close()
        run.keep_lease(float(message["lease"]))
        self._leases.connected(run_id, clock(), silence=run.lease)
        connection.owns = run_id
        self._next_beat = 0.0
        return self._do_watch(connection, message)

    def _do_watch(self, connection: Connection, message: Message) -> Message:
        run_id = str(message["run"])
        connection.watches.add(run_id)
        return {"ok": {"jobs": self._records(run_id)}}

    def _do_heard(self, connection: Connection, message: Message) -> None:
        connection.heard_at = min(clock(), float(message["beat"]))
        self._leases.renew(str(connection.owns), connection.heard_at)

    def _do_list(self, connection: Connection, message: Message) -> Message:
        return {"ok": {"jobs": self._records(message.get("run"))}}

    def _records(self, run_id: str | None) -> list[dict[str, Any]]:
        runs = [run for run in self._runs.values() if run_id in (None, run.id)]
        return [job.record for run in runs for job in run.jobs.values()]

    def _do_submit(self, connection: Connection, message: Message) -> Message:
        order = message["job"]
        run = self._runs.get(order["run"])
        if run is None or run.id not in self._leases:
            raise RequestError("lapsed", f"run {order['run']} is over on this host")
        known = run.jobs.get(order["id"])
        if known is not None:
            return {"ok": {"job": known.record}}
        spec = spec_of(order)
        found = JournaledJob.of(order["id"], spec, os.uname().nodename, self._owner)
        # by the submitter's clock
        found.submitted = order["submitted"]
        job = Job(run.folder_of(found.id), found, self._descriptors)
        self._start(run, job, spec, order)
        return {"ok": {"job": job.record}}

    def _start(self, run: Run, job: Job, spec: JobSpec, order: Message) -> None:
        job.on_output = lambda: self._output_of(job)
        environ = environ_of(order)
        launch = Launch(
            job_id=job.id,
            spec=spec,
            environ=environ,
            cwd=self._root,
            owner=None,
            answer=lambda _words, _warnings: None,
            accepted=True,
        )
        # the order made sense
        run.jobs[job.id] = job
        self._jobs[job.id] = run, job
        entry = self._table.add(job.id, owner=None, processes=1)
        self._runner.hold(launch)
        port = None
        try:
            os.makedirs(job.directory, mode=0o700, exist_ok=True)
            cwd = directory_for(order, run.work)
            if order.get("streams"):
                port, job.stream_port = bound_port()
                os.set_inheritable(port, True)
                environ["FIBER_REACH"] = f"streams:fd:{port}"
        except OSError as error:
            self._runner.abandon(entry, not_started(f"it cannot be started: {error}"))
        else:
            self._runner.start(values.evolve(launch, cwd=cwd))
        # a forked child, which unwinds from the start, keeps it
        if port is not None:
            os.close(port)

    def _output_of(self, job: Job) -> None:
        for connection in self._connections:
            if any(follower.job is job for follower in connection.followers.values()):
                connection.pump()

    def _job(self, message: Message) -> Job:
        for run in self._runs.values():
            if message["job"] in run.jobs:
                return run.jobs[message["job"]]
        raise RequestError("unknown", f"there is no job {message['job']} on this host")

    def _do_status(self, connection: Connection, message: Message) -> Message:
        return {"ok": {"job": self._job(message).record}}

    def _do_terminate(self, connection: Connection, message: Message) -> Message:
        entry = self._table.get(self._job(message).id)
        if entry is not None:
            self._runner.terminate(entry, float(message["grace"]))
            # one that is stopped would not see it
            self._runner.signal(entry, None, signal.SIGCONT, group=False)
        return {"ok": {}}

    def _do_kill(self, connection: Connection, message: Message) -> Message:
        self._kill(self._job(message))
        return {"ok": {}}

    def _do_follow(self, connection: Connection, message: Message) -> Message:
        follower = Follower(
            int(message["number"]),
            self._job(message),
            offset=int(message.get("offset", 0)),
            tail=message.get("tail"),
            follow=bool(message["follow"]),
        )
        connection.follow(follower)
        return {"ok": {}}

    def _do_unfollow(self, connection: Connection, message: Message) -> None:
        connection.unfollow(int(message["number"]))

    def _do_took(self, connection: Connection, message: Message) -> None:
        connection.took(int(message["number"]), int(message["count"]))

    def _do_release(self, connection: Connection, message: Message) -> Message | None:
        """End the jobs of a run that are not detached; forget the run once they have ended."""
        run = self._runs.get(str(message["run"]))
        if run is None:
            return {"ok": {}}
        self._leases.drop(run.id)
        for job in run.alive(detached=False):
            self._kill(job)
        self._waiting.append((connection, int(message["id"]), run))
        return None

    def _do_cleanup(self, connection: Connection, message: Message) -> Message | None:
        """End all jobs of a run and forget them, and the run if nobody owns it."""
        run = self._runs.get(str(message["run"]))
        if run is None:
            return {"ok": {}}
        run.is_condemned = True
        for job in run.jobs.values():
            job.known.detached = False
        for job in run.alive():
            self._kill(job)
        self._waiting.append((connection, int(message["id"]), run))
        return None
