"""A member of a ring, in its own process or on a thread of the caller.

A member says who and where it is, answers and makes probes, so that the controller learns which
addresses work, runs the framework and the user's function, and sends the result. A second thread
reads the controller's messages and sends heartbeats, so user code may block.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._ring import view
from fiber._ring.frameworks import common_environ, default_environ
from fiber._ring.model import RingTiming
from fiber._ring.protocol import (
    Assignment,
    Heartbeat,
    Leave,
    MembersChanged,
    Probe,
    Raised,
    Ready,
    Returned,
    Run,
    StateReply,
    StateRequest,
)
from fiber._ring.reachability import Presence, probe
from fiber._ring.view import RingView
from fiber._runtime import runtime
from fiber._wire import codec
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._ring.frameworks import RingFramework
    from fiber.connection import Connection


class ReservedPort:
    """TCP port that is bound and not listened on: the system gives it to no ``bind`` to port 0.

    A server that binds this very port with ``SO_REUSEADDR``, as servers do, gets it; also one of
    another user, as long as nobody listens there.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", 0))
        except BaseException:
            self._socket.close()
            raise
        #: port number
        self.number: int = self._socket.getsockname()[1]

    def listener(self, host: str = "") -> socket.socket:
        """Return a socket that listens on the port, which stays reserved when it is closed.

        Args:
            host: where it listens; all interfaces by default.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(True)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, self.number))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Release the port; idempotent."""
        self._socket.close()


log = logging.getLogger("fiber")


@values.frozen(kw_only=True)
class MemberSpec:
    """Specification that all members of a ring share."""

    #: the ring's name
    name: str
    #: ``func(rank, size)``
    function: Callable[[int, int], Any]
    #: ``initializer(ring, *initargs)``, called first
    initializer: Callable[..., Any] | None
    initargs: tuple[Any, ...]
    framework: RingFramework | None
    #: seconds between heartbeats
    heartbeat_interval: float
    timing: RingTiming


class WorkerProcess(Process):
    """The job of a worker of a gang: one process for each of its members.

    Args:
        name: of the worker.
        ends: members' ends of the pipes to the controller, by slot.
    """

    def __init__(self, name: str, ends: list[Connection]) -> None:
        super().__init__(name=name, daemon=True)
        self._ends = ends

    def run(self) -> None:
        """Be one member until the gang is over."""
        slot = runtime.current().index
        end = self._ends[slot]
        for other in self._ends:
            if other is not end:
                other.close()
        self._ends.clear()
        self.serve(end, slot)

    def serve(self, end: Connection, slot: int) -> None:
        """Be the member of a slot."""
        raise NotImplementedError


class MemberProcess(WorkerProcess):
    """The job of a worker of a ring, at one of its seats."""

    def __init__(self, spec: MemberSpec, ends: list[Connection], seat: int) -> None:
        super().__init__(f"{spec.name}.{seat}", ends)
        settings: dict[str, Any] = vars(self)["_config"]
        settings["fiber_may_have_children"] = True
        self._spec = spec

    def serve(self, end: Connection, slot: int) -> None:
        """Run one rank until the ring is over."""
        if not _Member(self._spec, end, is_process_wide=True).run():
            sys.exit(1)


class MemberThread(threading.Thread):
    """Rank 0 in the process that started the ring, on a thread.

    Args:
        spec: specification of the members.
        end: the member's end of the pipe to the controller.
        on_end: called when the rank has left the ring.
    """

    def __init__(self, spec: MemberSpec, end: Connection, on_end: Callable[[], None]) -> None:
        super().__init__(name="fiber-ring-rank0", daemon=True)
        self._end = end
        self._on_end = on_end

        self._environ_before = dict(os.environ)
        self._member = _Member(spec, end, is_process_wide=False)

    def run(self) -> None:
        """Run the rank, and restore the environment afterwards."""
        try:
            self._member.run()
        finally:
            self.restore()
            self._end.close()
            self._on_end()

    def restore(self) -> None:
        """Restore the environment variables that the ring has set; idempotent."""
        names, self._member.changed_variables = self._member.changed_variables, []
        for name in names:
            os.environ.pop(name, None)
            if name in self._environ_before:
                os.environ[name] = self._environ_before[name]


class _Member:
    def __init__(self, spec: MemberSpec, end: Connection, *, is_process_wide: bool) -> None:
        self._spec = spec
        self._end = end
        self._is_process_wide = is_process_wide
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ring: RingView | None = None
        #: names of environment variables that were set
        self.changed_variables: list[str] = []

    def run(self) -> bool:
        """Run until the controller's :class:`Leave`; returns False if user code raised."""
        listening = threading.Thread(target=self._listen, name="fiber-ring-receiver", daemon=True)
        port = ReservedPort()
        answering = Presence(port.listener)
        has_failed = False
        try:
            self._send(answering.hello())
            listening.start()
            while not isinstance(message := self._inbox.get(), Leave):
                if isinstance(message, Probe):
                    self._send_probe_result(message)
                    continue
                if isinstance(message, MembersChanged):
                    self._changed(message)
                    continue
                # all members have been probed; from now on the port is the user's
                answering.close()
                has_failed = has_failed or not self._run_user_code(message)
        finally:
            answering.close()
            port.close()
            if self._ring is not None:
                self._ring.close()
        return not has_failed

    def _listen(self) -> None:
        """Receive messages on a thread of its own; answer those that cannot wait for user code."""
        has_begun = False
        try:
            while True:
                if not self._end.poll(self._spec.heartbeat_interval):
                    self._send(Heartbeat())
                    continue
                message = self._end.recv()
                if isinstance(message, StateRequest):
                    self._in_background(self._send_state)
                    continue
                if has_begun and isinstance(message, Probe):
                    self._in_background(functools.partial(self._send_probe_result, message))
                    continue
                if has_begun and isinstance(message, MembersChanged):
                    self._changed(message)
                    continue
                self._inbox.put(message)
                has_begun = has_begun or isinstance(message, Run)
                if isinstance(message, Leave):
                    return
        except (EOFError, OSError):
            # the controller is gone, and the ring with it
            self._inbox.put(Leave())

    def _in_background(self, action: Callable[[], None]) -> None:
        """Run on a thread of its own, so that heartbeats go on."""
        threading.Thread(target=action, name="fiber-ring-background", daemon=True).start()

    def _send_state(self) -> None:
        ring = self._ring
        self._send(StateReply(*((0, None) if ring is None else ring.kept())))

    def _send_probe_result(self, message: Probe) -> None:
        timing = self._spec.timing
        self._send(probe(message.targets, timing.probe, timing.probe_rest))

    def _changed(self, message: MembersChanged) -> None:
        ring, framework = self._ring, self._spec.framework
        assert ring is not None, "members change only after an assignment"
        if not ring.changed(message.rank, message.members, message.change):
            return
        try:
            if framework is not None:
                framework.changed(ring)
        except Exception:
            # an error of the framework must not end the user's function
            log.exception("fiber: the framework failed to handle a change of members")
        finally:
            ring.announce()

    def _run_user_code(self, message: Assignment | Run) -> bool:
        """Run code of the framework and the user; an exception is sent, and False returned."""
        try:
            if isinstance(message, Assignment):
                self._join_ring(message)
            else:
                self._send(Returned(self._run_function(message)))
        except Exception as error:
            self._send(_raised(error))
            return False
        return True

    def _send(self, message: Any) -> None:
        # without a controller the receiving thread ends this member
        with contextlib.suppress(OSError, EOFError):
            self._end.send(message)

    def _join_ring(self, message: Assignment) -> None:
        self._ring = RingView(
            rank=message.rank,
            members=message.members,
            restarts=message.restarts,
            round=message.round,
            name=self._spec.name,
            bounds=message.bounds,
            change=message.change,
            timing=self._spec.timing,
        )
        view.enter(self._ring, is_process_wide=self._is_process_wide)
        framework = self._spec.framework
        facts = framework.host(self._ring) if framework is not None and message.is_host else {}
        self._send(Ready(dict(facts)))

    def _run_function(self, message: Run) -> bytes:
        ring, spec = self._ring, self._spec
        assert ring is not None, "members run only after an assignment"
        ring.take(message.step, message.state)
        self._set_variables(common_environ(ring))
        defaults: dict[str, str] = default_environ(ring)
        if spec.framework is not None:
            self._set_variables(spec.framework.environ(ring, message.facts))
            defaults.update(spec.framework.preferences(ring))
        self._set_variables(
            {name: value for name, value in defaults.items() if name not in os.environ}
        )
        if spec.framework is not None:
            self._set_variables(spec.framework.enter(ring, message.facts))
        if spec.initializer is not None:
            spec.initializer(ring, *spec.initargs)
        result = spec.function(ring.rank, ring.size)
        if spec.framework is not None:
            spec.framework.leave(ring)
        try:
            return codec.pickled(result)
        except Exception as failure:
            raise codec.encoding_error(failure, result) from failure

    def _set_variables(self, variables: Mapping[str, str]) -> None:
        self.changed_variables += variables
        os.environ.update(variables)


def _raised(error: Exception) -> Raised:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    carried = codec.pickled(codec.with_traceback(error))
    return Raised(message=message, traceback=text, error=carried)
