"""Mutual exclusion and waiting in memory that processes of one host share.

A :class:`Monitor` is 64 bytes of memory with a POSIX mutex that is shared between processes and *robust*: where
a thread dies inside, however that came, the kernel says so to the next that enters, which then puts the state
that the mutex guards in order. A :class:`Word` is waited for until another process changes it (``futex(2)``).

Only Linux has both; :func:`is_possible` says where.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import platform
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fiber._base.threads import HAS_TWO_CPUS, TURN
from fiber._wire import fork

T = TypeVar("T")

#: bytes of a monitor
SIZE = 64
#: number of the system call ``futex`` by machine
_FUTEX = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
}
#: that of this machine, 0 where it is not known
NUMBER = _FUTEX.get(platform.machine(), 0)
_WAIT, _WAKE = 0, 1
#: type of a mutex that knows the thread that has it
_ERRORCHECK = 2
#: as many threads as there are
ALL = 2**31 - 1
_LOWER_HALF = 2**32 - 1
#: of a thread that is in the middle of using an object
IN_USE = (
    "a handler of a signal, or a finalizer, uses an object of fiber that its thread was just using; let it "
    "set a flag, or use another object there"
)
#: looks at a word before a thread sleeps, 0.1 us each; to sleep and be woken takes 10 us and more
MOST_LOOKS = 100 if HAS_TWO_CPUS else 0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))

    @classmethod
    def of(cls, seconds: float) -> _Timespec:
        return cls(int(seconds), int(seconds % 1 * 1e9))


class _Functions:
    """Functions of the C library.

    Raises:
        OSError: it lacks one, or the kernel has no robust mutexes.
    """

    def __init__(self) -> None:
        # the first runs its functions with the GIL, which is quick, the second without, for those that wait
        quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None)
        pointer = ctypes.c_void_p
        futex = (
            ctypes.c_long,
            pointer,
            ctypes.c_int,
            ctypes.c_uint32,
            pointer,
            pointer,
            ctypes.c_int,
        )
        try:
            # of these every argument is a reference; to declare types costs a tenth more
            self.init = quick.pthread_mutex_init
            self.try_lock, self.unlock = quick.pthread_mutex_trylock, quick.pthread_mutex_unlock
            self.consistent = quick.pthread_mutex_consistent
            self.lock = slow.pthread_mutex_timedlock
            self.init_semaphore, self.post = quick.sem_init, quick.sem_post
            self.wake, self.wait = _typed(quick.syscall, *futex), _typed(slow.syscall, *futex)
            #: attributes of a mutex that is robust and shared between processes
            self.attributes = ctypes.create_string_buffer(SIZE)
            codes = (
                quick.pthread_mutexattr_init(self.attributes),
                quick.pthread_mutexattr_setpshared(self.attributes, 1),
                quick.pthread_mutexattr_setrobust(self.attributes, 1),
                quick.pthread_mutexattr_settype(self.attributes, _ERRORCHECK),
            )
        except AttributeError as error:
            raise OSError(errno.ENOSYS, str(error)) from error
        if any(codes):
            raise OSError(max(codes), os.strerror(max(codes)))


def _typed(function: Any, *types: Any) -> Any:
    function.argtypes = types
    return function


@functools.cache
def functions() -> _Functions:
    """The functions, looked up once.

    Raises:
        OSError: as :class:`_Functions`.
    """
    return _Functions()


@functools.cache
def is_possible() -> bool:
    """True where this system has what monitors need."""
    if platform.system() != "Linux" or not NUMBER:
        return False
    if struct.calcsize("P") != 8 or sys.byteorder != "little":
        return False
    try:
        functions()
    except OSError:
        return False
    return True


class Monitor:
    """A monitor in this process.

    Threads that need nothing but the mutex, at once, call ``try_lock(mutex)`` and ``unlock(mutex)``, which are
    functions of the C library: the first returns 0, or else a code for :meth:`enter`; the second does nothing
    where the thread is not inside.

    Args:
        memory: shared memory, mapped.
        begin: where the monitor begins in it, a multiple of 8.
        is_new: True to make it, of zeros.
    """

    def __init__(self, memory: mmap.mmap, begin: int, *, is_new: bool) -> None:
        # keeps it mapped
        self._memory = (ctypes.c_char * SIZE).from_buffer(memory, begin)
        #: reference to the mutex
        self.mutex = ctypes.byref(self._memory)
        self._functions = functions()
        self.try_lock = self._functions.try_lock
        self.unlock = self._functions.unlock
        if is_new:
            self._functions.init(self.mutex, self._functions.attributes)

    def repair_is_due(self) -> bool:
        """With the monitor entered: True, once, where a thread died inside."""
        return not self._functions.consistent(self.mutex)

    def enter(self, code: int) -> bool:
        """Go on where ``try_lock`` has not returned 0, until the mutex is this thread's.

        Returns:
            True where a thread died inside.

        Raises:
            RuntimeError: it is this thread's: a handler of a signal uses what the thread was just using.
            OSError: the mutex is out of order.
        """
        looks = MOST_LOOKS
        while code == errno.EBUSY and looks:
            code, looks = self.try_lock(self.mutex), looks - 1
        while code in (errno.EBUSY, errno.ETIMEDOUT):
            # it is there for microseconds, unless it is stopped; a turn at a time, so that handlers of
            # signals are run
            until = _Timespec.of(time.time() + TURN)
            code = self._functions.lock(self.mutex, ctypes.byref(until))
        if code == errno.EOWNERDEAD:
            return self.repair_is_due()
        if code == errno.EDEADLK:
            raise RuntimeError(IN_USE)
        if code:
            raise OSError(code, f"the mutex of a shared object: {os.strerror(code)}")
        return False


class Word:
    """A word of shared memory whose change threads wait for.

    Args:
        memory: shared memory, mapped.
        begin: where the word begins, a multiple of 8; its lower 32 bits are looked at.
    """

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        # keeps it mapped
        self._memory = ctypes.c_uint32.from_buffer(memory, begin)
        self._address = ctypes.addressof(self._memory)
        self._functions = functions()

    def wait(self, value: int, seconds: float) -> None:
        """Wait until :meth:`wake` is called, unless the word has another value; may return early.

        Args:
            value: of the word when the state was looked at.
            seconds: after which it returns.
        """
        limit = ctypes.byref(_Timespec.of(seconds))
        self._functions.wait(NUMBER, self._address, _WAIT, value & _LOWER_HALF, limit, None, 0)

    def wake(self, count: int = ALL) -> int:
        """Wake threads that wait; how many there were."""
        woken: int = self._functions.wake(NUMBER, self._address, _WAKE, count, None, None, 0)
        return woken


class Turns:
    """Turns of a wait for a word in which the processes concerned may die; each is twice as long as the last.

    Args:
        longest: nanoseconds of the longest.
    """

    #: nanoseconds of the first, and of the longest where deaths matter
    FIRST, LONGEST = 1_000_000, 128_000_000

    def __init__(self, longest: int = LONGEST) -> None:
        #: nanoseconds of the next one
        self.turn = self.FIRST
        self._longest = longest

    @property
    def is_first(self) -> bool:
        """True until one has passed."""
        return self.turn == self.FIRST

    def wait(self, word: Word, value: int, left: float | None) -> bool:
        """Wait for one turn, or the seconds that are left; True where a whole one has passed."""
        seconds = self.turn / 1e9
        before = time.monotonic_ns()
        word.wait(value, seconds if left is None else min(left, seconds))
        has_passed = time.monotonic_ns() - before >= self.turn
        if has_passed:
            self.turn = min(2 * self.turn, self._longest)
        return has_passed


class SharedState:
    """State in shared memory, as one process uses it; a base class."""

    _lost: Callable[[], BaseException] | None = None

    def check(self) -> None:
        """Raise the error of an operation if the owner is lost."""
        if self._lost is not None:
            raise self._lost()

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: all uses raise an error from now on."""
        raise NotImplementedError


class Monitored(SharedState):
    """State of 64-bit words in shared memory behind a monitor, as one process uses it; a base class.

    Args:
        memory: shared memory, mapped.
        begin: where the monitor begins there, a multiple of 8; the words follow it.
        is_new: True to make the monitor, of zeros.
    """

    def __init__(self, memory: mmap.mmap, begin: int, *, is_new: bool) -> None:
        self._where = memory, begin
        self._monitor = Monitor(memory, begin, is_new=is_new)
        # attributes of the object itself: these are looked up at each use
        self._mutex: Any = self._monitor.mutex
        self._try_lock: Callable[[Any], int] = self._monitor.try_lock
        self._unlock = self._monitor.unlock
        fork.register(self)

    def abandon(self) -> None:
        """In a process forked by user code: refuse all uses."""
        self._refuse(_forked)

    def _enter(self, code: int) -> None:
        """Go on where ``try_lock`` has not returned 0."""
        if self._monitor.enter(code):
            try:
                self._repair()
            except BaseException:
                self._repair()
                raise

    def _repair(self) -> None:
        """Put the state in order that a change left which was not finished."""
        raise NotImplementedError

    def _inside(self, change: Callable[[], T]) -> T:
        """Run a change with the monitor entered."""
        has_begun = False
        try:
            code = self._try_lock(self._mutex)
            if code:
                self._enter(code)
            has_begun = True
            return change()
        except BaseException:
            if has_begun:
                self._repair()
            raise
        finally:
            if has_begun:
                self._unlock(self._mutex)
            else:
                self._back_out()

    def _back_out(self) -> None:
        """After an interrupt: leave the monitor if this thread is inside, its state in order."""
        # an error says that it is another's; that of a thread which has it already says so
        code = self._monitor.try_lock(self._mutex)
        if code != errno.EBUSY and self._monitor.repair_is_due():
            self._repair()
        self._unlock(self._mutex)

    def _refuse(self, error: Callable[[], BaseException]) -> None:
        """Make all uses raise an error from now on."""
        self._lost = error
        self._try_lock = self._refused

    def _refused(self, _: Any) -> int:
        assert self._lost is not None
        raise self._lost()


def _forked() -> BaseException:
    fork.check()
    raise AssertionError
