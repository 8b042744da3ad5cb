"""A member of a ring: joins the others, runs the user's code, and tells what became of it.

What a member tells of the host that it runs on.

A port of this host that stays a member's own until its user code binds it.

Members dial each other before user code runs, to learn which addresses work.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import logging
import os
import platform
import queue
import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fiber._base import values
from fiber._ring import framework as basics
from fiber._ring import view
from fiber._ring.model import Host
from fiber._ring.protocol import (
    Address,
    Beat,
    Changed,
    Hello,
    Kept,
    Leave,
    Meet,
    Met,
    Probe,
    Probed,
    Raised,
    Returned,
    Run,
    Target,
    Tell,
)
from fiber._ring.view import RingView
from fiber._runtime import runtime
from fiber._wire import codec
from fiber._wire.accept_thread import Accepting
from fiber._wire.interfaces import interfaces
from fiber.model import Interface
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework
    from fiber.connection import Connection

__all__ = ["MemberProcess", "MemberThread", "Work", "addresses", "this_host"]


def this_host() -> Host:
    """Its name, and what tells it from others of the same name."""
    name = platform.node()
    parts = [name]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        # processes in two network namespaces have no address in common
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return Host(name, "/".join(parts))


def addresses(interfaces: Sequence[Interface], parent_url: str = "") -> tuple[Address, ...]:
    """The host's addresses, best first: the one that its parent is reached by, loopback last.

    Args:
        interfaces: what it has.
        parent_url: where its parent listens, where that is a host.
    """
    route = _route(parent_url)
    found = []
    for position, one in enumerate(interfaces):
        ip = ipaddress.ip_address(one.address.partition("%")[0])
        # members listen at version 4
        if one.is_up and ip.version == 4:
            key = (ip.is_loopback, ip.is_link_local, one.address != route, position)
            found.append((key, Address(one.address, one.name)))
    return tuple(address for _, address in sorted(found, key=lambda pair: pair[0]))


def _route(url: str) -> str:
    """The own address by which the host of a URL is reached; empty where that tells nothing."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return ""
    if not host:
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setblocking(True)
        # nothing is sent: the system chooses a way
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return ""


class KeptPort:
    """Bound and not listened at, so the system gives it to nobody who asks for any port.

    Who asks for this very port and allows the reuse of addresses, as servers do, gets it.
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
        #: its number
        self.number: int = self._socket.getsockname()[1]

    def listener(self) -> socket.socket:
        """A listening socket at it; the port stays kept when that is closed."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(True)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", self.number))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Give it back; idempotent."""
        self._socket.close()


#: seconds within which an address answers, or does not work
PATIENCE = 5.0
#: seconds that others get once one address of each target has answered
_MORE = 0.5
#: connections at once
_WINDOW = 64
#: bytes of a proof
PROOF = 16


class Answering:
    """Answers whoever dials, on a thread of its own, until it is closed.

    Args:
        listener: where; closed with it.
        answer: what to say.
    """

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        self._answer = answer
        self._accepting = Accepting(listener, self._serve, name="fiber-ring-probe")

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self._answer)

    def close(self) -> None:
        """Answer nobody any more."""
        self._accepting.close()


@values.define(eq=False)
class _Dial:
    target: Target
    ip: str
    socket: socket.socket
    got: bytes = b""


def probe(targets: Iterable[Target], *, patience: float = PATIENCE) -> Probed:
    """Dial all addresses of all targets, many at once.

    Args:
        targets: whom.
        patience: seconds for all of it.
    """
    targets = list(targets)
    # each target's best address first
    most = max((len(target.ips) for target in targets), default=0)
    waiting = [
        (target, target.ips[position])
        for position in reversed(range(most))
        for target in reversed(targets)
        if position < len(target.ips)
    ]
    answered: dict[int, list[str]] = {target.index: [] for target in targets}
    failures: dict[int, str] = {}
    is_enough, end = False, time.monotonic() + patience
    with selectors.DefaultSelector() as selector:
        while (waiting or selector.get_map()) and time.monotonic() < end:
            while waiting and len(selector.get_map()) < _WINDOW:
                _dial(selector, *waiting.pop(), failures)
            for key, events in selector.select(max(0.0, min(0.2, end - time.monotonic()))):
                dial: _Dial = key.data
                outcome = _go_on(selector, dial, events)
                if outcome is None:
                    continue
                selector.unregister(dial.socket)
                dial.socket.close()
                if outcome == "" and dial.got == dial.target.proof:
                    answered[dial.target.index].append(dial.ip)
                else:
                    what = outcome or "somebody else answers there"
                    failures[dial.target.index] = f"{dial.ip}: {what}"
            if not is_enough and all(answered.values()):
                is_enough, end = True, min(end, time.monotonic() + _MORE)
        for key in list(selector.get_map().values()):
            dial = key.data
            failures.setdefault(dial.target.index, f"{dial.ip}: no answer within {patience:g} s")
            dial.socket.close()
    order = {target.index: target.ips for target in targets}
    return Probed(
        {index: tuple(sorted(found, key=order[index].index)) for index, found in answered.items()},
        failures,
    )


def _dial(
    selector: selectors.BaseSelector, target: Target, ip: str, failures: dict[int, str]
) -> None:
    dialling = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    dialling.setblocking(False)
    code = dialling.connect_ex((ip, target.port))
    if code not in (0, errno.EINPROGRESS):
        dialling.close()
        failures[target.index] = f"{ip}: {os.strerror(code)}"
        return
    dial = _Dial(target, ip, dialling)
    selector.register(dialling, selectors.EVENT_WRITE | selectors.EVENT_READ, dial)


def _go_on(selector: selectors.BaseSelector, dial: _Dial, events: int) -> str | None:
    """None while there may be more; empty once all has come; else what went wrong."""
    code = dial.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return os.strerror(code)
    if not events & selectors.EVENT_READ:
        selector.modify(dial.socket, selectors.EVENT_READ, dial)
        return None
    try:
        part = dial.socket.recv(PROOF - len(dial.got))
    except BlockingIOError:
        return None
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    dial.got += part
    if len(dial.got) >= PROOF:
        return ""
    return None if part else "it hung up"


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
                    host=this_host(),
                    pid=os.getpid(),
                    addresses=addresses(interfaces(), url),
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
