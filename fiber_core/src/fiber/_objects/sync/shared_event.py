"""Events in memory that the processes of one host share; their owner only keeps the memory.

Nothing is locked: each change is one word, so a process may die, and a handler of a signal may use the event,
at any instruction. To set it writes a number that was not there before, which all that wait see even where it
is cleared at once. A waiting thread says so first, so that nobody is woken where nobody waits.

Apart from :mod:`~fiber._objects.sync.event`, which is about messages.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._base.threads import turn
from fiber._objects.sync.monitor import LOOKS, SharedState, Word
from fiber._objects.waiting import Deadline

if TYPE_CHECKING:
    import mmap

# Words of the state, 8 bytes each.
_IS_SET = 0
#: the number of the last set; its lower half is the word that threads wait for
_NUMBER = 1
#: 1 once a thread waits, until it is set
_IS_AWAITED = 2
_WORDS = 3
#: bytes of an event
SIZE = 8 * _WORDS


class SharedEvent(SharedState):
    """An event in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped; zeros at first.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
    """

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        self._word = Word(memory, begin + 8 * _NUMBER)
        self._words = memoryview(memory)[begin : begin + SIZE].cast("q")
        # no other process uses the same numbers, and this one none twice in a row
        self._numbers = itertools.count(secrets.randbits(60))

    def is_set(self) -> bool:
        """True where it is set."""
        self.check()
        return bool(self._words[_IS_SET])

    def set(self) -> None:
        """Set it; all waiting threads go on."""
        self.check()
        words, number = self._words, next(self._numbers)
        words[_IS_SET] = 1
        words[_NUMBER] = number
        if words[_IS_AWAITED]:
            words[_IS_AWAITED] = 0
            self._word.wake()

    def clear(self) -> None:
        """Clear it: waits block from now on."""
        self.check()
        self._words[_IS_SET] = 0

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False if not in time."""
        self.check()
        words = self._words
        number = words[_NUMBER]
        if words[_IS_SET]:
            return True
        deadline = Deadline(timeout)
        for _ in range(LOOKS):
            if words[_NUMBER] != number:
                return True
        while True:
            words[_IS_AWAITED] = 1
            left = deadline.left
            if words[_NUMBER] != number or words[_IS_SET]:
                return True
            if left == 0:
                return False
            self._word.wait(number, turn(left))
            self.check()

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: all uses raise an error from now on."""
        self._lost = error
        self._word.wake()
