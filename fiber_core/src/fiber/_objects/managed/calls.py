"""What processes tell each other about calls of a managed object's methods; layouts and outcomes.

``CALL`` is a call to the object's target: the number of its strand, 1 where the item is laden, then
the item, a pickle of the method's name, its arguments and its keyword arguments. The answer tells
what became of it (``Answer``), whether its item is laden, and the target that the strands of the
object's process are served at. To that one go ``ENDED``, when no call of a strand will follow, and
``LOADED``, when a laden answer has been unpickled. ``ABANDONED`` goes to the object: nobody waits
for a call any more.

A call of a managed object that is made from its own process, on another thread.
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
from fiber._objects import protocol
from fiber._objects.address import Address
from fiber._objects.handle import decode
from fiber._objects.queue.messages import Item, Laden
from fiber._wire.frames import Buffer
from fiber.exceptions import WireError

log = logging.getLogger("fiber")

#: operations
CALL, ENDED, LOADED, ABANDONED = 112, 113, 114, 115

#: strand, 1 where the item is laden
_CALL = struct.Struct("<BQB")
#: strand, or number of the answered call
NUMBERED = struct.Struct("<BQ")
#: answer, 1 where the item is laden, target of the strands
_ANSWER = struct.Struct("<BBQ")


class Answer(enum.IntEnum):
    """What became of a call."""

    #: it returned the value that follows
    RETURNED = 0
    #: it made, or returned, what is to be a managed object of its own: :class:`Made`
    MADE = 1
    #: it raised the exception that follows
    RAISED = 2
    #: it was not made, or its value could not be sent: a text, and an exception or None
    FAILED = 3


_ANSWERS = {int(answer): answer for answer in Answer}

#: what became of a call, and the pickle that tells more
Outcome: TypeAlias = tuple[Answer, Item]


@values.frozen
class Made:
    """A managed object that a call made, held for the caller already."""

    #: the name its type is registered by
    typeid: str
    #: names of the methods that may be called
    exposed: tuple[str, ...]
    address: Address
    #: pickle of the class of its proxies as its manager knows it
    proxytype: bytes


def call(strand: int, item: Item) -> list[Buffer]:
    """Segments of a call."""
    laden = isinstance(item, Laden)
    return [_CALL.pack(CALL, strand, laden), item.body if isinstance(item, Laden) else item]


def read_call(body: memoryview) -> tuple[int, Item]:
    """Strand and item of a call.

    Raises:
        WireError: it makes no sense.
    """
    _, strand, laden = protocol.read(_CALL, body)
    return int(strand), _item(laden, body[_CALL.size :])


def answer(outcome: Outcome, strands: int) -> list[Buffer]:
    """Segments of an answer."""
    word, item = outcome
    laden = isinstance(item, Laden)
    return [_ANSWER.pack(word, laden, strands), item.body if isinstance(item, Laden) else item]


def read_answer(body: memoryview) -> tuple[Outcome, int]:
    """What became of a call, and the target of the strands.

    Raises:
        WireError: it makes no sense.
    """
    word, laden, strands = protocol.read(_ANSWER, body)
    known = _ANSWERS.get(word)
    if known is None:
        msg = f"a call is answered with {word}, which means nothing"
        raise WireError(msg)
    return (known, _item(laden, body[_ANSWER.size :])), int(strands)


def _item(laden: int, body: memoryview) -> Item:
    return Laden(body) if laden else body


def value(outcome: Outcome) -> Any:
    """What a call returned; :class:`Made` where that is a managed object.

    Raises:
        Exception: what the call raised, the remote traceback as its cause.
        multiprocessing.managers.RemoteError: it was not made, or its value could not be sent.
    """
    word, item = outcome
    found = decode(item)
    if word is Answer.RAISED:
        try:
            raise found
        finally:
            # the frame is in the exception's traceback
            del found
    if word is Answer.FAILED:
        from multiprocessing.managers import RemoteError

        text, cause = found
        raise RemoteError(text) from cause
    return found


def load_made(made: Made) -> Any:
    """The class of its proxies as its manager knows it."""
    return pickle.loads(made.proxytype)


def tell_failure(word: Answer, unread: str) -> None:
    """Log that a call failed of which nobody will ask for the outcome, by its method's name."""
    if unread and word in (Answer.RAISED, Answer.FAILED):
        log.warning("fiber: a call of %r failed, and nobody read its handle to see why", unread)


def tickets(item: Item) -> Sequence[tuple[str, tuple[str, ...], int, int]]:
    """Tickets of the references in an item."""
    return item.tickets() if isinstance(item, Laden) else ()


class LocalCall:
    """The same to its caller as :class:`~fiber._objects.managed.remote_referent.Call`."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._then: Callable[[], Any] | None = None

    @property
    def done(self) -> bool:
        """True once its outcome is here."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return self._done.wait(timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called once it is done, on the thread that made it or at once."""
        with self._lock:
            if not self._done.is_set():
                self._then = action
                return
        action()

    def settle(self, outcome: Outcome) -> None:
        """Note what became of it."""
        with self._lock:
            self._outcome = outcome
            self._done.set()
            then = self._then
        if then is not None:
            then()

    def value(self) -> Any:
        """What it returned, once it is :attr:`done`; to be asked once.

        Raises:
            Exception: what the method raised.
        """
        assert self._outcome is not None
        return value(self._outcome)

    def discard(self, unread: str = "") -> None:
        """Nobody will ask for its value: what it holds goes with it.

        Args:
            unread: the method's name, where it is to be told if it failed.
        """
        self.then(functools.partial(self._tell, unread))

    def _tell(self, unread: str) -> None:
        assert self._outcome is not None
        tell_failure(self._outcome[0], unread)
