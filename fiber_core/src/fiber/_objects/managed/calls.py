"""Messages and outcomes of method calls on managed objects.

``CALL`` is a call to the object's target: the number of its caller, 1 where the item has
references, then the item, a pickle of the method's name, its arguments and its keyword arguments.
The answer has the kind of outcome (``Answer``), 1 where its item has references, the target of the
process's caller threads, and the item. Sent to that target: ``ENDED`` when no call of a caller will
follow, ``LOADED`` when an answer with references has been unpickled. ``ABANDONED`` goes to the
object: the caller waits for the call no more.

Between processes of one host the calls of a thread go through a pipe of their own. ``OPEN``, a call to
any object of the process, brings the pickle of its far end, and is answered once a thread reads there.
Each message through it is a call: the target, then the item; and each is answered by the kind of outcome
and the item. Either side closes it: the caller where it waits no more, the other one never.

:class:`LocalCall` is a call from the object's own process on one of its caller threads.
"""

from __future__ import annotations

import enum
import functools
import logging
import pickle
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fiber._base import values
from fiber._base.threads import in_turns
from fiber._objects import protocol
from fiber._objects.address import Address
from fiber._objects.handle import decode
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

log = logging.getLogger("fiber")

#: operations
CALL, ENDED, LOADED, ABANDONED, OPEN = 112, 113, 114, 115, 116

#: operation, caller, 1 where the item has references
_CALL = struct.Struct("<BQB")
#: operation; number of a caller, or of a call
NUMBERED = struct.Struct("<BQ")
#: answer, 1 where the item has references, target of the caller threads
_ANSWER = struct.Struct("<BBQ")


class Answer(enum.IntEnum):
    """Kind of outcome of a call, and what its item holds."""

    #: the value that it returned
    RETURNED = 0
    #: a :class:`CreatedObject`: what it returned has become a managed object
    CREATED = 1
    #: the exception that it raised
    RAISED = 2
    #: a text, and an exception or None: it was not made, or its value could not be pickled
    FAILED = 3
    #: None: the object does not exist any more
    GONE = 4


_ANSWERS = {int(answer): answer for answer in Answer}

#: kind of outcome, and its pickle
Outcome: TypeAlias = tuple[Answer, Item]


@values.frozen
class CreatedObject:
    """A managed object that a call created; a reference is held for the calling process."""

    #: registered name of its type
    typeid: str
    #: names of the methods that may be called
    exposed: tuple[str, ...]
    address: Address
    #: pickle of its proxy class as registered at the manager
    proxytype: bytes


def call(caller: int, item: Item, op: int = CALL) -> list[Buffer]:
    """Segments of a call."""
    has_references = isinstance(item, ItemWithReferences)
    return [
        _CALL.pack(op, caller, has_references),
        item.body if isinstance(item, ItemWithReferences) else item,
    ]


def read_call(body: memoryview) -> tuple[int, Item]:
    """Caller and item of a call.

    Raises:
        WireError: it is malformed.
    """
    _, caller, has_references = protocol.read(_CALL, body)
    return int(caller), _item(has_references, body[_CALL.size :])


def answer(outcome: Outcome, caller_threads: int) -> list[Buffer]:
    """Segments of an answer."""
    kind, item = outcome
    has_references = isinstance(item, ItemWithReferences)
    return [
        _ANSWER.pack(kind, has_references, caller_threads),
        item.body if isinstance(item, ItemWithReferences) else item,
    ]


def read_answer(body: memoryview) -> tuple[Outcome, int]:
    """Outcome of a call, and the target of the caller threads.

    Raises:
        WireError: it is malformed.
    """
    kind, has_references, caller_threads = protocol.read(_ANSWER, body)
    known = _ANSWERS.get(kind)
    if known is None:
        msg = f"a call is answered with {kind}, which means nothing"
        raise WireError(msg)
    return (known, _item(has_references, body[_ANSWER.size :])), int(caller_threads)


def _item(has_references: int, body: memoryview) -> Item:
    return ItemWithReferences(body) if has_references else body


def value(outcome: Outcome) -> Any:
    """Value of a call; a :class:`CreatedObject` where that is a managed object.

    Raises:
        Exception: that of the method, the remote traceback as its cause.
        multiprocessing.managers.RemoteError: the call was not made, or its value not pickled.
    """
    kind, item = outcome
    found = decode(item)
    if kind is Answer.RAISED:
        try:
            raise found
        finally:
            # the frame is in the exception's traceback
            del found
    if kind is Answer.FAILED:
        from multiprocessing.managers import RemoteError

        text, cause = found
        raise RemoteError(text) from cause
    return found


def load_proxytype(created: CreatedObject) -> Any:
    """Proxy class of a created object as registered at its manager."""
    return pickle.loads(created.proxytype)


def log_failure(kind: Answer, unread: str) -> None:
    """Log the failure of a call whose handle was dropped unread; ``unread``: its method."""
    if unread and kind in (Answer.RAISED, Answer.FAILED):
        log.warning("fiber: a call of %r failed, and nobody read its handle to see why", unread)


def references(item: Item) -> Sequence[tuple[str, tuple[str, ...], int, int]]:
    """References to shared objects in an item."""
    return item.references() if isinstance(item, ItemWithReferences) else ()


class LocalCall:
    """A call within the object's process; see ``Call`` in ``referent``."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._then: Callable[[], Any] | None = None

    @property
    def done(self) -> bool:
        """True once it has an outcome."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return in_turns(self._done.wait, timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Call ``action`` once it is done: on its thread, or now."""
        with self._lock:
            if not self._done.is_set():
                self._then = action
                return
        action()

    def settle(self, outcome: Outcome) -> None:
        """Set its outcome."""
        with self._lock:
            self._outcome = outcome
            self._done.set()
            then = self._then
        if then is not None:
            then()

    def value(self) -> Any:
        """Value of a call that is :attr:`done`; to be called once.

        Raises:
            Exception: that of the method.
        """
        assert self._outcome is not None
        return value(self._outcome)

    def discard(self, unread: str = "") -> None:
        """Drop the outcome unread.

        Args:
            unread: the method's name, to log a failure; empty to log none.
        """
        self.then(functools.partial(self._log_failure, unread))

    def _log_failure(self, unread: str) -> None:
        assert self._outcome is not None
        log_failure(self._outcome[0], unread)
