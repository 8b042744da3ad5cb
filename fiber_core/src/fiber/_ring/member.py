"""A member of a ring: joins the others, runs the user's code, and tells what became of it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._ring import framework as basics
from fiber._ring import host, view
from fiber._ring.ports import KeptPort
from fiber._ring.protocol import (
    Beat,
    Changed,
    Hello,
    Kept,
    Leave,
    Meet,
    Met,
    Probe,
    Raised,
    Returned,
    Run,
    Tell,
)
from fiber._ring.reachability import PROOF, Answering, probe
from fiber._ring.view import RingView
from fiber._runtime import runtime
from fiber._wire import codec
from fiber._wire.interfaces import interfaces
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework
    from fiber.pipes import Connection

__all__ = ["MemberProcess", "MemberThread", "Work"]

log = logging.getLogger("fiber")


@values.frozen(kw_only=True)
class Work:
    """What every member of a ring does."""

    #: the ring's name
    name: str
    #: ``func(rank, size)``
    function: Callable[[int, int], Any]
    #: ``initializer(ring, *initargs)``, called first
    initializer: Callable[..., Any] | None
    initargs: tuple[Any, ...]
    framework: RingFramework | None
    #: seconds between signs of life
    beat: float


class MemberProcess(Process):
    """The process of one member, or those of several that share a job."""

    def __init__(self, work: Work, ends: list[Connection]) -> None:
        super().__init__(name=f"{work.name}-member", daemon=True)
        settings: dict[str, Any] = vars(self)["_config"]
        settings["fiber_may_have_children"] = True
        self._work = work
        self._ends = ends

    def run(self) -> None:
        """Be a member until the ring is over."""
        current = runtime.current()
        end = self._ends[current.index]
        for other in self._ends:
            if other is not end:
                other.close()
        self._ends.clear()
        link = current.parent_link
        member = _Member(self._work, end, "" if link is None else link.url, of_process=True)
        if not member.run():
            sys.exit(1)


class MemberThread(threading.Thread):
    """The member that is the ring's own caller: a thread of its process.

    Args:
        work: what it does.
        end: its end of the pipe to the coordinator.
        ended: called when it has left.
    """

    def __init__(self, work: Work, end: Connection, ended: Callable[[], None]) -> None:
        super().__init__(name="fiber-ring-rank0", daemon=True)
        self._end = end
        self._ended = ended

        self._before = dict(os.environ)
        self._member = _Member(work, end, "", of_process=False)

    def run(self) -> None:
        """Be a member; the environment is afterwards as it was."""
        try:
            self._member.run()
        finally:
            self.restore()
            self._end.close()
            self._ended()

    def restore(self) -> None:
        """Set back what the ring has set in the environment; idempotent."""
        changed, self._member.changed = self._member.changed, []
        for name in changed:
            os.environ.pop(name, None)
            if name in self._before:
                os.environ[name] = self._before[name]


class _Member:
    def __init__(self, work: Work, end: Connection, parent: str, *, of_process: bool) -> None:
        self._work = work
        self._end = end
        self._parent = parent
        self._of_process = of_process
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ring: RingView | None = None
        #: variables that were set
        self.changed: list[str] = []

    def run(self) -> bool:
        """Until the coordinator says to leave; False where user code raised."""
        listening = threading.Thread(target=self._listen, name="fiber-ring", daemon=True)
        port = KeptPort()
        proof = secrets.token_bytes(PROOF)
        # before anybody is told of it
        answering = Answering(port.listener(), proof)
        has_failed = False
        try:
            url = self._parent
            self._tell(
                Hello(
                    host=host.this_host(),
                    pid=os.getpid(),
                    addresses=host.addresses(interfaces(), url),
                    port=port.number,
                    proof=proof,
                )
            )
            listening.start()
            while not isinstance(order := self._orders.get(), Leave):
                if isinstance(order, Probe):
                    self._probe(order)
                    continue
                if isinstance(order, Changed):
                    self._changed(order)
                    continue
                # all have dialled; from now on the port is the user's
                answering.close()
                has_failed = has_failed or not self._guarded(order)
        finally:
            answering.close()
            port.close()
            if self._ring is not None:
                self._ring.close()
        return not has_failed

    def _listen(self) -> None:
        """On a thread of its own: signs of life, and what must be answered while user code runs."""
        has_begun = False
        try:
            while True:
                if not self._end.poll(self._work.beat):
                    self._tell(Beat())
                    continue
                order = self._end.recv()
                if isinstance(order, Tell):
                    self._aside(self._tell_state)
                    continue
                if has_begun and isinstance(order, Probe):
                    self._aside(functools.partial(self._probe, order))
                    continue
                if has_begun and isinstance(order, Changed):
                    self._changed(order)
                    continue
                self._orders.put(order)
                has_begun = has_begun or isinstance(order, Run)
                if isinstance(order, Leave):
                    return
        except (EOFError, OSError):
            # who coordinated is gone, and with it everything that it started
            self._orders.put(Leave())

    def _aside(self, action: Callable[[], None]) -> None:
        """On a thread of its own: signs of life go on meanwhile."""
        threading.Thread(target=action, name="fiber-ring-aside", daemon=True).start()

    def _tell_state(self) -> None:
        ring = self._ring
        self._tell(Kept(*((0, None) if ring is None else ring.kept())))

    def _probe(self, order: Probe) -> None:
        self._tell(probe(order.targets))

    def _changed(self, order: Changed) -> None:
        ring, framework = self._ring, self._work.framework
        assert ring is not None, "the coordinator changes nothing before they met"
        if not ring.changed(order.rank, order.members, order.change):
            return
        try:
            if framework is not None:
                framework.changed(ring)
        except Exception:
            # the user's function is not to end because of it
            log.exception("fiber: the framework could not be told who the members are now")
        finally:
            ring.announce()

    def _guarded(self, order: Meet | Run) -> bool:
        """Do what may raise what is the user's; True where it did not."""
        try:
            if isinstance(order, Meet):
                self._meet(order)
            else:
                self._tell(Returned(self._work_on(order)))
        except Exception as error:
            self._tell(_raised(error))
            return False
        return True

    def _tell(self, message: Any) -> None:
        # without a coordinator nobody is there to be told, and the listening thread ends this
        with contextlib.suppress(OSError, EOFError):
            self._end.send(message)

    def _meet(self, order: Meet) -> None:
        self._ring = RingView(
            rank=order.rank,
            members=order.members,
            restarts=order.restarts,
            round=order.round,
            name=self._work.name,
            bounds=order.bounds,
            change=order.change,
        )
        view.enter(self._ring, of_process=self._of_process)
        framework = self._work.framework
        facts = framework.host(self._ring) if framework is not None and order.hosts else {}
        self._tell(Met(dict(facts)))

    def _work_on(self, order: Run) -> bytes:
        ring, work = self._ring, self._work
        assert ring is not None, "the coordinator lets nobody run before they met"
        ring.take(order.step, order.state)
        self._set(basics.common(ring))
        wishes: dict[str, str] = basics.preferences(ring)
        if work.framework is not None:
            self._set(work.framework.environ(ring, order.facts))
            wishes.update(work.framework.preferences(ring))
        self._set({name: value for name, value in wishes.items() if name not in os.environ})
        if work.framework is not None:
            self._set(work.framework.enter(ring, order.facts))
        if work.initializer is not None:
            work.initializer(ring, *work.initargs)
        result = work.function(ring.rank, ring.size)
        if work.framework is not None:
            work.framework.leave(ring)
        try:
            return codec.pickled(result)
        except Exception as failure:
            raise codec.encoding_error(failure, result) from failure

    def _set(self, variables: Mapping[str, str]) -> None:
        self.changed += variables
        os.environ.update(variables)


def _raised(error: Exception) -> Raised:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    carried = codec.pickled(codec.with_traceback(error))
    return Raised(message=message, traceback=text, error=carried)
