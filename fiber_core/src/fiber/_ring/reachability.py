"""Who can dial whom: each member of a ring, or of a run of mpirun, answers and makes probes.

The one that is dialled says bytes that only it has, which who dials was told over the run's own
connections: two hosts may have the same address, on a bridge that each has for itself. Who dials says
nothing, for a stranger may be there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable

from fiber._base import values
from fiber._ring.protocol import ProbeResult, ProbeTarget
from fiber._wire.accept_thread import AcceptThread

__all__ = ["PROOF_SIZE", "ProbeListener", "probe"]

#: open connections of one probe
_MAX_CONNECTIONS = 64
#: length of a proof in bytes
PROOF_SIZE = 16


class ProbeListener:
    """Sends a fixed answer to every connection, on a thread of its own, until closed.

    Args:
        listener: the listening socket, which is closed with this object.
        answer: the bytes to send.
    """

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        self._answer = answer
        self._accepting = AcceptThread(listener, self._serve, name="fiber-ring-probe")

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self._answer)

    def close(self) -> None:
        """Stop listening."""
        self._accepting.close()


@values.define(eq=False)
class _Dial:
    target: ProbeTarget
    ip: str
    socket: socket.socket
    got: bytes = b""


def probe(targets: Iterable[ProbeTarget], patience: float, rest: float) -> ProbeResult:
    """Dial all addresses of all targets, many at once.

    Args:
        targets: members to dial.
        patience: seconds for the whole probe.
        rest: seconds for further answers, once an address of each target has answered.
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
    answered: dict[int | str, list[str]] = {target.index: [] for target in targets}
    failures: dict[int | str, str] = {}
    is_enough, end = False, time.monotonic() + patience
    with selectors.DefaultSelector() as selector:
        while (waiting or selector.get_map()) and time.monotonic() < end:
            while waiting and len(selector.get_map()) < _MAX_CONNECTIONS:
                _start_dial(selector, *waiting.pop(), failures)
            if not selector.get_map():
                break
            for key, events in selector.select(max(0.0, end - time.monotonic())):
                dial: _Dial = key.data
                outcome = _advance(selector, dial, events)
                if outcome is None:
                    continue
                selector.unregister(dial.socket)
                dial.socket.close()
                if outcome == "" and dial.got == dial.target.proof:
                    answered[dial.target.index].append(dial.ip)
                else:
                    what = outcome or "another process answers there"
                    failures[dial.target.index] = f"{dial.ip}: {what}"
            if not is_enough and all(answered.values()):
                is_enough, end = True, min(end, time.monotonic() + rest)
        for key in list(selector.get_map().values()):
            dial = key.data
            failures.setdefault(dial.target.index, f"{dial.ip}: no answer within {patience:g} s")
            dial.socket.close()
    order = {target.index: target.ips for target in targets}
    return ProbeResult(
        {index: tuple(sorted(found, key=order[index].index)) for index, found in answered.items()},
        failures,
    )


def _start_dial(
    selector: selectors.BaseSelector, target: ProbeTarget, ip: str, failures: dict[int | str, str]
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


def _advance(selector: selectors.BaseSelector, dial: _Dial, events: int) -> str | None:
    """Advance a connection: None while it is open, empty once a proof has come, else the error."""
    code = dial.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return os.strerror(code)
    if not events & selectors.EVENT_READ:
        selector.modify(dial.socket, selectors.EVENT_READ, dial)
        return None
    try:
        part = dial.socket.recv(PROOF_SIZE - len(dial.got))
    except BlockingIOError:
        return None
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    dial.got += part
    if len(dial.got) >= PROOF_SIZE:
        return ""
    return None if part else "it hung up"
