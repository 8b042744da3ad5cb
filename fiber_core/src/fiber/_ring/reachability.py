"""Members dial each other before user code runs, to learn which addresses work."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable

from fiber._base import values
from fiber._ring.protocol import Probed, Target
from fiber._wire.accept_thread import Accepting

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
