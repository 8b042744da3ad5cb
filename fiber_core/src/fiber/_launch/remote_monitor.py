"""What a parent has to do with the supervisors of its remote jobs: reports, signals, leases.

Writes what jobs elsewhere wrote to this process's own output, on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._agent.job.config import MODULE, Orders, supervisor_ident
from fiber._agent.lease import INTERVAL, Expired, LeaseTable
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base import values
from fiber._launch import status_merge
from fiber._launch.code_server import Sources
from fiber._launch.submit_proxy import Relays
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.exceptions import FiberError, WireError
from fiber.model import JobState, JobStatus, Reason, ReasonKind

if TYPE_CHECKING:
    from fiber._agent.instructions import Instructions
    from fiber._launch.child import Child
    from fiber._launch.context import LaunchContext
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message
    from fiber._wire.reactor import Timer
    from fiber.model import Job, JobSpec

__all__ = ["Shown"]

#: bytes that wait for a terminal that takes none, before the first of them are dropped
_MOST = 1 << 24
_PIECE = 1 << 12


class Shown:
    """Stdout and stderr of this process, for many writers; nobody waits for a terminal."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        # pieces that were written, and those of them that are shown or dropped
        self._written = self._done = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def write(self, stream: int, data: bytes) -> None:
        """Show bytes soon.

        Args:
            stream: 1 or 2.
            data: whole lines, or the beginning of one.
        """
        if stream not in {1, 2} or not data:
            return
        with self._changed:
            self._pieces.append((stream, data))
            self._written += 1
            self._size += len(data)
            while self._size > _MOST and len(self._pieces) > 1:
                self._size -= len(self._pieces.popleft()[1])
                self._done += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="fiber-shown", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout: float) -> None:
        """Wait until what was written is shown, at most so many seconds: a terminal may take nothing."""
        with self._changed:
            number = self._written
            self._changed.wait_for(lambda: self._done >= number, timeout)

    def close(self, *, timeout: float = 5.0) -> None:
        """Show what there is, and end the thread; a terminal that takes nothing is left. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pieces and not self._closed:
                    self._changed.wait()
                if not self._pieces:
                    return
                stream, data = self._pieces.popleft()
                self._size -= len(data)
            _put(stream, data)
            with self._changed:
                self._done += 1
                self._changed.notify_all()


def _put(stream: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(stream, data[:_PIECE]) :]
        except BlockingIOError:
            # somebody made the terminal or pipe non-blocking: it is waited for
            poll = select.poll()
            poll.register(stream, select.POLLOUT)
            poll.poll()
        except OSError:
            # whoever read it has gone; what is written to it goes nowhere
            return


log = logging.getLogger("fiber")

#: the Python of hosts of which nobody has said anything else
PYTHON = "python3"
#: seconds that a last report may come after the platform's word of the end; a supervisor waits for its
#: receipt, so one that has ended without it was killed, or cut off
_LAST_REPORT = 0.5
#: seconds that a supervisor may take to carry out a SIGKILL before the platform is asked for it
_KILL = 3.0
#: seconds of silence that mean something where connections tell of an end themselves
_NEAR_SILENCE = 30.0
#: seconds for which whoever joins a job waits for its last lines to be shown
_SHOWN_WITHIN = 1.0
#: lines of a log that tell why a job never came up
_TAIL = 20


@values.define(eq=False)
class _Far:
    """One remote job."""

    child: Child
    peer: Peer | None = None
    #: True once its supervisor has said hello
    met: bool = False
    reported: JobStatus | None = None
    platform: JobStatus | None = None
    asked: set[int] = values.field(factory=set)
    #: what there was nobody to tell
    unsent: list[messages.Signal] = values.field(factory=list)
    #: runs when something did not come in time
    timer: Timer | None = None


class Overseer:
    """The remote children of one process.

    Args:
        runtime: of this process.
        tell: called with a child and its status; takes no lock of ours meanwhile.
    """

    def __init__(self, runtime: LaunchContext, tell: Callable[[Child, JobStatus], None]) -> None:
        self._runtime = runtime
        self._tell = tell
        self._lock = threading.RLock()
        self._far: dict[str, _Far] = {}
        lease = runtime.lease
        silence = max(lease, _NEAR_SILENCE) if runtime.info.near else lease
        self._leases: LeaseTable[str] = LeaseTable(lease=lease, silence=silence)
        self._timer: Timer | None = None
        #: answers questions for modules; None where jobs see our files
        self.sources = None if runtime.info.capabilities.same_host else Sources()
        # what jobs start themselves, where they have no way to the platform
        self._relays = None if self.sources is None else Relays(runtime)
        self._shown = Shown()
        runtime.endpoint.on_refused = self._on_refused

    # -- children -------------------------------------------------------------------------------

    def supervised(
        self, spec: JobSpec, instructions: Instructions, *, drains: bool = False
    ) -> JobSpec:
        """The same job with a supervisor of its own, for a backend that starts programs."""
        capabilities = self._runtime.info.capabilities
        resources = spec.resources
        near = self._runtime.info.near
        orders = Orders(
            instructions=values.evolve(instructions, elsewhere=not capabilities.same_host),
            name=spec.name,
            lease=self._runtime.lease,
            silence=None if near else self._runtime.lease,
            cpu=resources.cpu,
            memory=resources.memory,
            confine=not (capabilities.cpu_limit and capabilities.memory_limit),
            # on one host it is inherited
            tell_output=not (capabilities.output or capabilities.same_host),
            prefix=f"[{spec.name}] " if spec.log_prefix else "",
            drains=drains,
        )
        python = spec.argv[0] if capabilities.same_host else PYTHON
        return values.evolve(
            spec,
            argv=(python, *spec.argv[1:-1], MODULE),
            cwd=spec.cwd if capabilities.same_host else None,
            private=orders.encode(),
            processes=1,
        )

    def expect(self, child: Child) -> None:
        """A job is about to be submitted."""
        with self._lock:
            self._far[supervisor_ident(child.ident)] = _Far(child)

    def forget(self, child: Child) -> None:
        """A job has ended, or never began."""
        ident = supervisor_ident(child.ident)
        with self._lock:
            far = self._far.pop(ident, None)
            self._leases.drop(ident)
            if far is not None and far.timer is not None:
                far.timer.cancel()
        if self._relays is not None:
            self._relays.ended([child.ident, *(child.ident_of(i) for i in range(child.processes))])

    def relays(self, job: Job, status: JobStatus) -> bool:
        """True for a change of a job that a child of ours asked for."""
        return self._relays is not None and self._relays.observed(job, status)

    def knows(self, ident: str) -> bool:
        """True for the identity of a supervisor, also of one whose job was given up."""
        return ident in self._far or ident.endswith(".s")

    def payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """What a job's processes are given, for a host that sees nothing of ours."""
        if self.sources is None:
            return payload
        info = self._runtime.info
        config = payload["config"]
        backend = {
            "name": info.name,
            "aliases": info.aliases,
            "capabilities": info.capabilities,
            "lease": info.lease,
            "near": info.near,
        }
        return {
            **payload,
            "modules": self.sources.names(),
            "config": values.evolve(config, settings=None),
            # apart: the plugin that has their class need not be installed there
            "settings": frames.joined(codec.dumps(config.settings)),
            "backend": backend,
        }

    def settle_output(self) -> None:
        """Wait until what jobs have written is shown, as far as anybody reads it."""
        self._shown.settle(_SHOWN_WITHIN)

    def close(self) -> None:
        """Answer no more questions; what was written is shown before."""
        self._shown.close()
        if self.sources is not None:
            self.sources.close()

    # -- what supervisors say, on the handler thread --------------------------------------------

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take one message of a supervisor."""
        with self._lock:
            far = self._far.get(peer.ident)
        if far is None:
            # its job was given up: it is to end what it still has
            peer.send(Kind.ERROR, 0, message.id)
            return
        if far.peer is not peer:
            self._meet(far, peer)
        with self._lock:
            self._leases.heard(peer.ident, time.monotonic())
        decoder = Decoder()
        decoder.feed(bytes(message.body))
        for said in decoder.messages():
            self._take(far, peer, said)
        if message.kind is Kind.CALL:
            peer.send(Kind.REPLY, 0, message.id)

    def on_peer_lost(self, peer: Peer) -> None:
        """A connection is gone; where it was a supervisor's, another one may be made."""
        with self._lock:
            far = self._far.get(peer.ident)
            if far is None or far.peer is not peer:
                return
            far.peer = None
            self._leases.cut(peer.ident, time.monotonic())
        if far.platform is not None and far.platform.state.is_terminal:
            self._end_by_platform(far)

    def _meet(self, far: _Far, peer: Peer) -> None:
        with self._lock:
            far.peer, far.met = peer, True
            now = time.monotonic()
            self._leases.joined(peer.ident, now)
            if far.platform is not None and far.platform.state is JobState.SUSPENDED:
                self._leases.pause(peer.ident, True, now)
            unsent, far.unsent = far.unsent, []
        if self._timer is None:
            self._timer = self._runtime.reactor.call_later(INTERVAL, self._look)
        for message in unsent:
            self._send(far, message)

    def _take(self, far: _Far, peer: Peer, said: object) -> None:
        if isinstance(said, messages.Ping):
            peer.send(Kind.CAST, 0, 0, [encode(messages.Pong())])
        elif isinstance(said, messages.StatusChanged):
            with self._lock:
                platform = far.platform
                far.reported = said.status
            status = said.status
            if not status.state.is_terminal and platform is not None:
                status = status_merge.during(status, platform)
            elif platform is not None:
                status = status_merge.with_host(status, platform.host)
                status = status_merge.taken_away(status, platform, asked=far.asked)
            if self._relays is not None:
                ended = (p.index for p in status.processes if p.state.is_terminal)
                self._relays.ended(far.child.ident_of(index) for index in ended)
            self._tell(far.child, status)
        elif isinstance(said, messages.Output):
            self._shown.write(said.stream, said.data)
        elif not isinstance(said, messages.Hello):
            msg = f"a supervisor says {type(said).__name__}, which is none of its words"
            raise WireError(msg)

    def _on_refused(self, ident: str, why: str) -> None:
        with self._lock:
            far = self._far.get(ident)
        if far is not None:
            far.child.never_came(why)

    # -- what the platform says, on the events thread -------------------------------------------

    def observed(self, child: Child, status: JobStatus) -> JobStatus | None:
        """What the platform's word means for a child; None for nothing, or nothing yet."""
        with self._lock:
            far = self._far.get(supervisor_ident(child.ident))
            if far is None:
                return status
            far.platform = status
            self._leases.pause(
                supervisor_ident(child.ident),
                status.state is JobState.SUSPENDED,
                time.monotonic(),
            )
            if not status.state.is_terminal:
                return status_merge.during(far.reported, status)
            if far.peer is not None:
                if status.reason == Reason(ReasonKind.NODE_LOST):
                    # nobody knows there, and its supervisor does: it lives, until its lease is over
                    return None
                # its last words may be on their way still
                self._later(far, _LAST_REPORT, lambda: self._end_by_platform(far))
                return None
        return self._ending(far)

    def _end_by_platform(self, far: _Far) -> None:
        with self._lock:
            if self._far.get(supervisor_ident(far.child.ident)) is not far:
                return
        self._tell(far.child, self._ending(far))

    def _ending(self, far: _Far) -> JobStatus:
        assert far.platform is not None
        status = status_merge.of_platform(far.platform, far.reported, asked=far.asked)
        if not far.met and not far.asked and status.state is JobState.FAILED:
            far.child.never_came(status_merge.diagnose(status, self._tail(far.child, status)))
        return status

    def _tail(self, child: Child, status: JobStatus) -> tuple[str, ...]:
        told = next((p.log_tail for p in status.processes if p.log_tail), ())
        if told or child.job is None or not self._runtime.info.capabilities.logs:
            return told
        try:
            return tuple(self._runtime.backend.logs(child.job, tail=_TAIL))
        except FiberError as error:
            log.debug("fiber: the log of %s cannot be had: %s", child.name, error)
            return ()

    # -- what is asked of a child ---------------------------------------------------------------

    def signal(self, child: Child, index: int | None, signum: int) -> bool:
        """Send a signal to one process, or all; False where its supervisor cannot be told now."""
        with self._lock:
            far = self._far.get(supervisor_ident(child.ident))
            if far is None:
                return True
            far.asked.add(int(signum))
        group = signum == signal.SIGKILL
        return self._send(far, messages.Signal(0, child.ident, index, int(signum), group))

    def was_sent(self, child: Child, signum: int) -> bool:
        """True where a signal was sent to it before, or it has ended."""
        with self._lock:
            far = self._far.get(supervisor_ident(child.ident))
            return far is None or int(signum) in far.asked

    def kill(self, child: Child) -> bool:
        """SIGKILL to all processes; False where only the platform can do it."""
        if not self.signal(child, None, signal.SIGKILL):
            return False
        with self._lock:
            far = self._far.get(supervisor_ident(child.ident))
            if far is not None:
                self._later(far, _KILL, lambda: self._fence(far))
        return True

    def _send(self, far: _Far, message: messages.Signal) -> bool:
        with self._lock:
            peer = far.peer
            if peer is None:
                far.unsent.append(message)
                return False
        peer.send(Kind.CAST, 0, 0, [encode(message)])
        return True

    # -- leases ---------------------------------------------------------------------------------

    def has_lease(self, child: Child) -> bool:
        """True for a job whose supervisor has connected: its silence is what ends it."""
        with self._lock:
            return supervisor_ident(child.ident) in self._leases

    def _look(self) -> None:
        with self._lock:
            expired = self._leases.look(time.monotonic())
            again = bool(self._far) and not self._runtime.closing
            self._timer = self._runtime.reactor.call_later(INTERVAL, self._look) if again else None
            due = [(one, self._far[one.key]) for one in expired if one.key in self._far]
        for one, far in due:
            self._give_up(one, far)

    def _give_up(self, expired: Expired[str], far: _Far) -> None:
        where = far.child.host or "its host"
        how = "its connection was gone" if expired.is_cut else "nothing was heard of it"
        words = f"{how} for {expired.silent:.1f} s: {where} or the way there is lost"
        log.warning("fiber: %s is given up: %s", far.child.name, words)

        def act() -> None:
            # first, so that what it did is not done twice where that can be helped
            self._kill_by_platform(far)
            reason, host = Reason(ReasonKind.LEASE), far.child.host
            self._tell(far.child, status_merge.lost(far.reported, reason, host=host, words=words))

        self._beside(act)

    def _fence(self, far: _Far) -> None:
        self._beside(lambda: self._kill_by_platform(far))

    def _kill_by_platform(self, far: _Far) -> None:
        if far.child.job is None:
            return
        try:
            self._runtime.backend.kill(far.child.job)
        except FiberError as error:
            log.warning("fiber: %s cannot be ended for certain: %s", far.child.name, error)

    def _beside(self, act: Callable[[], None]) -> None:
        # a platform may take its time, and the handler thread has others to serve
        threading.Thread(target=act, name="fiber-fence", daemon=True).start()

    def _later(self, far: _Far, delay: float, action: Callable[[], None]) -> None:
        if far.timer is not None:
            far.timer.cancel()
        far.timer = self._runtime.reactor.call_later(delay, action)
