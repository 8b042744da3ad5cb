"""Something that is waited for, in another process than its owner's."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._objects.address import Address
from fiber._objects.owner import Owner, bare
from fiber._objects.remote import Remote
from fiber._objects.sync import protocol
from fiber._objects.sync.protocol import SAY, Op, Word
from fiber._objects.sync.wait_queue import Verdict
from fiber._objects.waiting import pass_gate
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.store import Store


@values.frozen
class Told:
    """What the owner answered."""

    verdict: Verdict
    value: int = 0
    text: str = ""


class _Asked:
    """A request at the owner, or on its way there."""

    __slots__ = ("gate", "heard", "is_abandoned", "told", "undo")

    def __init__(
        self, heard: Callable[[Told], None] | None, undo: Callable[[Told], None] | None
    ) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.told: Told | None = None
        self.heard = heard
        self.undo = undo
        #: True once nobody waits for it
        self.is_abandoned = False


class RemoteWaited(Remote):
    """Asks the owner; a subclass knows what its kind is for.

    ``_guard`` guards the state and is held for short only, also by the handler thread.
    """

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._guard = threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._error: BaseException | None = None

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""
        return self._owner.ident

    # -- the user's threads

    def ask(
        self,
        op: Op,
        argument: int = 0,
        timeout: float | None = None,
        *,
        heard: Callable[[Told], None] | None = None,
        undo: Callable[[Told], None] | None = None,
        after: Callable[[], object] | None = None,
    ) -> Told:
        """Ask the owner; call ``after``; wait for the answer; cancel after ``timeout`` seconds.

        ``heard`` is called with the answer on the handler thread, with the guard held. An
        interrupt takes nothing with it: ``undo`` is called, on yet another thread, for an answer
        that nobody will see.

        Raises:
            PeerLostError: the owner is gone.
        """
        number = next(self._numbers)
        asked = _Asked(heard, undo)
        try:
            with self._guard:
                if self._error is None:
                    self._asked[number] = asked
            if self._error is None:
                self.say(op, argument, number)
                if after is not None:
                    after()
                if not pass_gate(asked.gate, timeout):
                    self.say(Op.CANCEL, 1, number)
                    pass_gate(asked.gate, None)
        except BaseException:
            self._abandon(number, asked)
            raise
        if asked.told is None:
            raise self.lost(self._error) from self._error
        return asked.told

    def say(self, op: Op, argument: int = 0, number: int = 0) -> None:
        """Tell the owner something.

        Raises:
            PeerLostError: it is gone.
        """
        if self._error is not None:
            raise self.lost(self._error) from self._error
        try:
            self.cast([SAY.pack(op, number, argument)])
        except PeerLostError as error:
            self.fail(bare(error))
            raise self.lost(error) from error

    def lost(self, error: BaseException | None) -> PeerLostError:
        """What the loss of the owner means for the user."""
        return self.loss(error or PeerLostError())

    def _abandon(self, number: int, asked: _Asked) -> None:
        with self._guard:
            asked.is_abandoned = True
            told = asked.told
            if self._error is not None:
                return
        if told is None:
            self.soon(functools.partial(self.say, Op.CANCEL, 0, number))
        elif asked.undo is not None:
            self.soon(functools.partial(asked.undo, told))

    # -- what the owner says, and its loss; on the handler thread

    def on_word(self, message: Message) -> None:
        """The owner says something unasked."""
        word = message.body[0] if len(message.body) else 0
        if word == Word.ANSWER:
            self._take_answer(message)
        elif word == Word.ARRIVED:
            self.soon(functools.partial(self.say, Op.ARRIVED))
        else:
            self._heard_word(word)

    def _take_answer(self, message: Message) -> None:
        number, verdict, value, text = protocol.parse_answer(message.body)
        told = Told(verdict, value, text)
        with self._guard:
            asked = self._asked.pop(number, None)
            if asked is None:
                return
            asked.told = told
            if asked.heard is not None:
                asked.heard(told)
            asked.gate.release()
            undo = asked.undo if asked.is_abandoned else None
        if undo is not None:
            self.soon(functools.partial(undo, told))

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        with self._guard:
            if self._error is None:
                self._error = error
            waiting = list(self._asked.values())
            self._asked.clear()
        for asked in waiting:
            asked.gate.release()

    # -- for subclasses

    def _heard_word(self, word: int) -> None:
        """On the handler thread: the owner says something of the kind's own."""
