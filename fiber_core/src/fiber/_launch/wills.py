"""Last wills: where a parent sends what a child had noted, once that was killed.

A child uses objects of any process of the run, which only learns that the child's connection has ended.
How it ended, and what it had noted, its supervisor tells its parent. So the child has its parent send
that to the object. Apart from ``launcher``, as few programs need it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fiber._wire.frames import Kind
from fiber.exceptions import TransportError
from fiber.model import JobState

if TYPE_CHECKING:
    from fiber._launch.child import Control
    from fiber._launch.context import LaunchContext
    from fiber._wire.client import Client
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message
    from fiber.model import ProcessStatus

__all__ = ["TARGET", "WillService", "leave_will"]

#: of the service
TARGET = 2**62 + 1


class WillService:
    """Executor of the wills of one process's children."""

    def __init__(self, launcher: Control, runtime: LaunchContext) -> None:
        self._launcher = launcher
        self._runtime = runtime
        runtime.endpoint.serve(TARGET, self)

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take the will of a child; others' are refused."""
        found = None if peer.auth_domain is not None else self._launcher.child_of(peer.ident)
        try:
            will = json.loads(bytes(message.body))
            urls, target = [str(url) for url in will["urls"]], int(will["target"])
            head = bytes.fromhex(will["head"])
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if found is None:
            peer.send(Kind.ERROR, TARGET, message.id)
            return

        def execute(status: ProcessStatus) -> None:
            # one that ended well has said so itself
            if status.state is JobState.FAILED and status.noted is not None:
                body = [head, status.noted]
                # a process that is gone may have to be dialled for long
                threading.Thread(
                    target=self._send, args=(urls, target, body), name="fiber-will", daemon=True
                ).start()

        child, index = found
        child.on_process_end(index, execute)
        peer.send(Kind.REPLY, TARGET, message.id)

    def on_peer_lost(self, peer: Peer) -> None:
        """Do nothing: the end of a process is told by its supervisor."""

    def _send(self, urls: Sequence[str], target: int, body: Sequence[bytes]) -> None:
        for url in urls:
            # whoever waits for it does so for a bounded time
            with contextlib.suppress(TransportError):
                self._runtime.client(url).cast(target, body)
                return


def leave_will(
    parent: Client, urls: Sequence[str], target: int, head: bytes, then: Callable[[], object]
) -> None:
    """Have the parent send ``head`` and this process's notes to an object, should this process fail.

    Args:
        parent: connection to the parent.
        urls: of the object's owner, best first.
        target: of the object.
        head: what the message begins with.
        then: called on the handler thread once the parent has taken it.

    Raises:
        PeerLostError: the parent is gone.
    """
    will = json.dumps({"urls": list(urls), "target": target, "head": head.hex()}).encode()
    pending = parent.call(TARGET, [will])

    def on_answer(_: object) -> None:
        with contextlib.suppress(TransportError):
            pending.result()
            then()

    pending.add_done_callback(on_answer)
