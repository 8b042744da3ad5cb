"""One connection of one worker as its pool sees it: what goes to it, and what it has been sent."""

from __future__ import annotations

from fiber._tasks import protocol
from fiber._tasks.call import Call, Unsendable
from fiber._tasks.pending.events import Dispatch
from fiber._tasks.pending.views import HeldView
from fiber._tasks.protocol import DIGEST, Mode, Tasks
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError

#: functions after which a worker is sent them anew, so that the memory of them stays small
_KNOWN = 4096


class Session:
    """Sends to a worker; one that dials again gets another.

    Args:
        name: its name in the pending table, never used twice.
        peer: its connection.
        target: number by which the worker addresses its pool.
    """

    def __init__(self, name: str, peer: Peer, target: int) -> None:
        self.name = name
        #: identity of the worker's process within the run
        self.ident = peer.ident
        #: True once it asked for work, so that its initializer is behind it
        self.is_up = False
        self._peer = peer
        self._target = target
        self._known: set[bytes] = set()
        #: True where its process may map memory of this one
        self.is_near = peer.is_near

    def give(self, call: Call, step: Dispatch) -> float:
        """Send an entry, and the function where it is news; return the mean size of an item."""
        mode, segments = call.encode(step.start, step.stop, near=self.is_near)
        if call.digest not in self._known:
            self.tell(call.digest, call)
        head = Tasks(step.entry, step.call, step.start, step.stop, step.chunk, mode, call.digest)
        self._peer.send(Kind.TASKS, self._target, step.entry, [head.encode(), *segments])
        return sum(len(segment) for segment in segments) / (step.stop - step.start)

    def give_again(self, held: HeldView, call: Call | None) -> None:
        """Send the items of an entry each pickled by itself; of no call, none that would run."""
        start, stop = held.start, held.stop
        if call is None:
            none = Unsendable(TerminatedError("nobody waits for this task any more")).pickled()
            head = Tasks(held.entry, held.call, start, stop, 1, Mode.SINGLY, bytes(DIGEST))
            segments = codec.dumps([none] * (stop - start))
        else:
            mode, segments = call.encode_singly(start, stop)
            chunk = call.chunksize or 1
            head = Tasks(held.entry, held.call, start, stop, chunk, mode, call.digest)
        self._peer.send(Kind.TASKS, self._target, held.entry, [head.encode(), *segments])

    def tell(self, digest: bytes, call: Call | None) -> None:
        """Send a function, or word that no call with it is left."""
        if call is None:
            self._known.discard(digest)
        else:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known.add(digest)
        if call is not None and call.laid is not None and self.is_near:
            body = protocol.function(digest, [call.laid.place])
            self._peer.send(Kind.FUNCTION, self._target, protocol.LAID, body)
            return
        body = protocol.function(digest, call.function if call is not None else ())
        self._peer.send(Kind.FUNCTION, self._target, 0, body)

    def forget(self, digest: bytes) -> None:
        """Have it drop a function that it was sent."""
        if digest in self._known:
            self.tell(digest, None)

    def revoke(self, entry: int) -> None:
        """Ask for what it has not begun of an entry."""
        self._peer.send(Kind.REVOKE, self._target, 0, [protocol.entry(entry)])

    def retire(self) -> None:
        """Have it exit."""
        self._peer.send(Kind.RETIRE, self._target, 0)

    def cut(self) -> None:
        """Close the connection; the worker dials again, and what it holds runs elsewhere."""
        self._peer.close()
