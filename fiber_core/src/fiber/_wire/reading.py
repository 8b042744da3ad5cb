"""Reading of a socket: by the handler thread, or by a thread that waits for one of its frames.

A frame that the handler thread reads for a thread that waits has that thread woken behind it. So whoever
waits may take the handler thread's place meanwhile: one thread at a time, and only for frames that it can
take up itself. The first other one goes to the handler thread, and so do all after it.

The thread may be the main thread, where the handler of a signal may raise between any two instructions. So
a frame is looked at first, which changes nothing; then it is consumed, by one instruction; and what is done
with it then is done once more where it was interrupted.

On Linux alone: elsewhere there is no ``epoll``, through which the handler thread is kept from the socket by
one system call.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import Looks, Reactor, drained, wake, wake_pipe
from fiber._wire import descriptors, fork
from fiber._wire.frames import Buffer
from fiber.exceptions import TransportError, WireError

#: what is to be done with a frame, once it is consumed; doing it twice does no harm. True where the thread
#: has what it waits for
Action: TypeAlias = Callable[[], object]
#: looks at a frame and its pipe's number: what a waiting thread does with it; None for the handler thread's
Look: TypeAlias = Callable[[int, Buffer], Action | None]


#: looks at the socket before a thread sleeps, 2 us each
_MOST_LOOKS = 60
# errors of epoll for a descriptor that nng has closed, or user code has closed or replaced
_GONE = errno.EBADF, errno.ENOENT, errno.EINVAL, errno.EPERM


class Source(Protocol):
    """Socket whose frames are looked at before they are consumed; under :attr:`Reading.lock`."""

    #: descriptor that is readable where there are frames
    fd: int

    @property
    def held(self) -> tuple[int, Buffer] | None:
        """What was looked at last and not consumed."""

    def peek(self) -> tuple[int, Buffer] | None:
        """The next frame with the number of its pipe, empty where it is not whole; None where there is none now."""

    def consume(self) -> None:
        """Let the frame that was looked at go."""


def _is_closed(error: BaseException) -> bool:
    """True for the error of a descriptor that was closed or replaced; not for what a signal's handler raised."""
    return isinstance(error, OSError) and error.errno in _GONE


class Reading:
    """The reading of one socket.

    Args:
        read: reads what there is, under :attr:`lock`; called on the handler thread.
        others: descriptors for which it is called too.
    """

    def __init__(
        self,
        source: Source,
        reactor: Reactor,
        read: Callable[[], None],
        others: tuple[int, ...] = (),
    ) -> None:
        #: held while frames are received and handled
        self.lock = threading.Lock()
        self._source = source
        self._reactor = reactor
        self._read = read
        self._role = threading.Lock()
        self._is_stopped = self._is_closed = False
        # True while a thread that reads may wait for a descriptor
        self._polls = False
        self._looks = Looks(_MOST_LOOKS)
        self._wake_lock = threading.Lock()
        self._fd = source.fd
        if sys.platform == "linux":
            # through which the handler thread polls the socket, unless another thread does
            self._gate = select.epoll()
            self._gate.register(source.fd, select.EPOLLIN)
            self._fd = self._gate.fileno()
        self._wake_read, self._wake_write = wake_pipe()
        own = {self._fd, self._wake_read, self._wake_write} - {source.fd}
        self._owned = descriptors.OwnedDescriptors(own)
        self._poll = select.poll()
        self._poll.register(source.fd, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._watched = self._fd, *others
        for fd in self._watched:
            reactor.add_reader(fd, read)

    def wait(
        self,
        look: Look,
        is_over: Callable[[], bool],
        timeout: float,
        begin: Callable[[], object] | None = None,
    ) -> bool:
        """Read in the handler thread's place until something is over, or time has passed.

        Args:
            look: called with each frame.
            is_over: called before each wait; :meth:`wake` has it called once more.
            timeout: seconds.
            begin: called first, once this thread reads: an answer to what it sends comes to no other.

        Returns:
            False where the handler thread reads: it has to be waited for in another way.
        """
        # an interrupt right behind the acquisition leaves all reading to the handler thread for good
        may_read = not (self._is_stopped or fork.in_child)
        if sys.platform == "linux" and may_read and self._role.acquire(blocking=False):
            try:
                self._gate.modify(self._source.fd, 0)
                if begin is not None:
                    begin()
                return self._lead(look, is_over, timeout)
            except BaseException as error:
                # an interrupt; a frame may have been received, for which no descriptor is readable any more
                self._reactor.call_soon(self._read)
                if _is_closed(error):
                    return False
                raise
            finally:
                # nothing of Python's before it, in which an interrupt could prevent it
                try:
                    self._gate.modify(self._source.fd, select.EPOLLIN)
                except OSError as error:
                    if not _is_closed(error):
                        raise
                finally:
                    self._polls = False
                    self._role.release()
                    if self._is_stopped:
                        self._close()
        return False

    def wake(self) -> None:
        """Have the thread that reads look whether it is over."""
        if not self._polls:
            # it looks before it polls
            return
        with self._wake_lock:
            if not self._is_closed and self._owned.are_intact:
                wake(self._wake_write)

    def stop(self) -> None:
        """Stop all reading; before the socket is closed."""
        self._is_stopped = True
        self.wake()
        for fd in self._watched:
            self._reactor.remove_reader(fd)
        self._close()

    def _lead(self, look: Look, is_over: Callable[[], bool], timeout: float) -> bool:
        end, left = time.monotonic() + timeout, max(0.0, timeout)
        most = looks = self._looks.begin() if timeout > 0 else 0
        while True:
            # before it is looked whether it is over: whoever ends the wait from now on wakes a thread that sleeps
            self._polls = not looks
            if is_over() or self._is_stopped:
                return True
            ready = self._poll.poll(0 if looks else 1000 * left)
            self._polls = False
            if not ready:
                if not looks:
                    return True
                looks = looks - 1 if self._looks.give_way() else 0
            elif ready[-1][0] == self._wake_read:
                drained(self._wake_read)
            else:
                if 0 < looks < most:
                    self._looks.found()
                taken = self._take(look)
                if taken is None:
                    self._reactor.call_soon(self._read)
                    return False
                if taken:
                    return True
            left = max(0.0, end - time.monotonic())

    def _take(self, look: Look) -> bool | None:
        """Take up the next frame, if there is one; True where that ends the wait.

        Returns:
            None where it is for the handler thread.
        """
        source = self._source
        with self.lock:
            try:
                frame = source.peek()
                action = None if frame is None else look(*frame)
            except (TransportError, WireError):
                return None
            if frame is None:
                return False
            if action is None:
                return None
            try:
                source.consume()
                return action() is True
            except BaseException:
                # an interrupt
                if source.held is None:
                    action()
                raise

    def _close(self) -> None:
        """Close its own descriptors, unless a thread reads, which closes them when it is over."""
        if not self._role.acquire(blocking=False):
            return
        with self._wake_lock:
            is_closed, self._is_closed = self._is_closed, True
            if not is_closed and self._owned.are_intact:
                if sys.platform == "linux":
                    self._gate.close()
                os.close(self._wake_read)
                os.close(self._wake_write)

    @unless_finalizing
    def __del__(self) -> None:
        self._close()
