"""Owner side of one worker's connection: sends entries and functions, remembers which were sent."""

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

#: digests that are remembered; with more, all are dropped and functions are sent anew
_KNOWN = 4096


class Session:
    """Sends to one worker; a worker that reconnects gets a new session.

    Args:
        name: its name in the pending table, never used twice.
        peer: its connection.
        target: number of the pool in messages.
    """

    def __init__(self, name: str, peer: Peer, target: int) -> None:
        self.name = name
        #: identity of the worker's process within the run
        self.ident = peer.ident
        #: True once it asked for work, so its initializer has returned
        self.is_up = False
        self._peer = peer
        self._target = target
        self._sent: set[bytes] = set()
        #: bytes of its resident memory as it told last, and when it was asked
        self.memory: int | None = None
        self._asked: float | None = None
        #: True where its process may map memory of this one
        self.shares_memory = peer.is_same_host

    def send_entry(self, call: Call, step: Dispatch) -> float:
        """Send an entry, after its function where that is new; returns the mean size of an item."""
        mode, segments = call.encode(step.start, step.stop, shares_memory=self.shares_memory)
        if call.digest not in self._sent:
            self.send_function(call.digest, call)
        start, stop, context = step.start, step.stop, call.context
        head = Tasks(step.entry, step.call, start, stop, step.chunk, mode, call.digest, context)
        self._peer.send(Kind.TASKS, self._target, step.entry, [head.encode(), *segments])
        return sum(map(len, segments)) / (step.stop - step.start)

    def send_entry_singly(self, held: HeldView, call: Call | None) -> None:
        """Send the items of an entry each pickled by itself; with call=None, stand-ins that fail."""
        start, stop = held.start, held.stop
        if call is None:
            none = Unsendable(TerminatedError("the call of this task is over")).pickled()
            head = Tasks(held.entry, held.call, start, stop, 1, Mode.SINGLY, bytes(DIGEST))
            segments = codec.dumps([none] * (stop - start))
        else:
            mode, segments = call.encode_singly(start, stop)
            chunk = call.chunksize or 1
            head = Tasks(held.entry, held.call, start, stop, chunk, mode, call.digest, call.context)
        self._peer.send(Kind.TASKS, self._target, held.entry, [head.encode(), *segments])

    def send_function(self, digest: bytes, call: Call | None) -> None:
        """Send a pickled function; with call=None tell the worker to forget it."""
        if call is None:
            self._sent.discard(digest)
        else:
            if len(self._sent) >= _KNOWN:
                self._sent.clear()
            self._sent.add(digest)
        if call is not None and call.shared_function is not None and self.shares_memory:
            body = protocol.function(digest, [call.shared_function.locator])
            self._peer.send(Kind.FUNCTION, self._target, protocol.SHARED, body)
            return
        body = protocol.function(digest, call.function if call is not None else ())
        self._peer.send(Kind.FUNCTION, self._target, 0, body)

    def forget(self, digest: bytes) -> None:
        """Tell the worker to forget a function, where it was sent."""
        if digest in self._sent:
            self.send_function(digest, None)

    def revoke(self, entry: int) -> None:
        """Send REVOKE: the worker is to hand back what it has not begun of an entry."""
        self._peer.send(Kind.REVOKE, self._target, 0, [protocol.entry(entry)])

    def look(self, now: float, interval: float) -> None:
        """Send LOOK, unless that was done less than ``interval`` seconds ago: the worker tells of itself."""
        if self._asked is None or now - self._asked >= interval:
            self._asked = now
            self._peer.send(Kind.LOOK, self._target, 0)

    def retire(self) -> None:
        """Send RETIRE: the worker is to exit."""
        self._peer.send(Kind.RETIRE, self._target, 0)

    def disconnect(self) -> None:
        """Close the connection; the worker dials again, and others run what it held."""
        self._peer.close()
