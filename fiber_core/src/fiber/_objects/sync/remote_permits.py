"""A lock or semaphore in another process than its owner's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fiber._objects.address import Address, Kind
from fiber._objects.owner import Owner
from fiber._objects.sync.holding import Held, Holding
from fiber._objects.sync.protocol import Op, Word
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import TAKEN, Verdict
from fiber.exceptions import LeaseLostError, PeerLostError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class RemotePermits(Held, RemoteWaited):
    """One question for each permit, and one word for giving it back.

    See :class:`~fiber._objects.sync.handle_actions.Locking`.
    """

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        #: what this process has
        self.mine = Holding(self.shape.name, recursive=address.kind is Kind.RLOCK)
        # True while it is held here although no handle is left
        self._pinned = False

    # -- the user's threads

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time."""
        mine = self.mine
        if self._error is None and mine.enter_again():
            return True
        wait = block and (timeout is None or timeout > 0)
        patience = timeout if wait else None
        told = self.ask(Op.ACQUIRE, wait, patience, heard=self._count, undo=self._undo)
        if told.verdict in TAKEN:
            mine.mark()
        if told.text:
            self.warn(told.verdict, told.text)
        return told.verdict is not Verdict.NO

    def release(self) -> None:
        """Give a permit back."""
        mine = self.mine
        self.check()
        if not mine.leave_once():
            return
        with self._guard:
            has_one = mine.held > 0
            if has_one:
                mine.held -= 1
        if has_one:
            self._give_back()
        elif self.ask(Op.GIVE).verdict is Verdict.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Raise what an operation would: the owner is gone, and perhaps what was held."""
        if self._error is not None:
            raise self.lost(self._error) from self._error

    def value(self) -> int:
        """How many permits can be taken."""
        return self.ask(Op.VALUE).value

    def lost(self, error: BaseException | None) -> PeerLostError:
        """What the loss of the owner means for the user."""
        lost = super().lost(error)
        if self.mine.held <= 0:
            return lost
        msg = (
            f"the connection to the owner of this {self.shape.name} was lost while this process "
            f"held it, so others may hold it by now: {lost}"
        )
        return LeaseLostError(msg)

    def _give_back(self) -> None:
        try:
            self.say(Op.RELEASE)
        except PeerLostError as error:
            with self._guard:
                self.mine.held += 1
            raise self.lost(error) from error

    def _count(self, told: Told) -> None:
        if told.verdict in TAKEN:
            self.mine.held += 1

    def _undo(self, told: Told) -> None:
        if told.verdict in TAKEN:
            with self._guard:
                self.mine.held -= 1
            self.say(Op.RELEASE, told.verdict is Verdict.INHERITED)

    # -- what happens elsewhere

    def _heard_word(self, word: int) -> None:
        if word == Word.TAKEN_OFF:
            with self._guard:
                self.mine.held -= 1

    def ending(self, code: int) -> None:
        """This process ends by itself; after a normal end what it holds stays taken."""
        # a permit may also be on its way to a thread that waits
        if code == 0 and self._error is None and (self.mine.held > 0 or self._asked):
            self.soon(functools.partial(self.say, Op.ENDING, max(0, self.mine.held)))

    def _drop(self, end: int) -> None:
        # what is held stays so without a handle, and the owner is to hear how this process ends
        with self._lock:
            held = self.mine.held > 0
            if self._pinned and not held:
                self._pinned = False
                self._holds[end] -= 1
            elif held and not self._pinned and self._holds[end] == 1:
                self._pinned = True
                return
        super()._drop(end)
