"""A member's view of its ring: :class:`RingView`, and :func:`current_ring`, which returns it."""

from __future__ import annotations

import contextlib
import logging
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fiber._agent import rundir
from fiber._ring.model import Member, RingTiming
from fiber._runtime import runtime
from fiber._wire import codec
from fiber.exceptions import FiberError

log = logging.getLogger("fiber")

_local = threading.local()
_process_ring: RingView | None = None


class RingView:
    """A member's view of its ring: rank, all members, and the state that a restart goes on from.

    The initializer gets it as an argument; :func:`current_ring` returns it anywhere in the member.
    """

    def __init__(
        self,
        *,
        rank: int,
        members: tuple[Member, ...],
        restarts: int = 0,
        round: int = 1,  # noqa: A002 - the term of torchrun and Horovod
        name: str = "ring",
        bounds: tuple[int, int] | None = None,
        change: int = 0,
        timing: RingTiming = RingTiming(),
    ) -> None:
        #: rank, members and number of changes, which are set together
        self._world = rank, members, change
        self._announced = change
        #: restarts of all ranks after a failure so far
        self.restarts = restarts
        #: number of this assignment of ranks, from 1
        self.round = round
        #: name of the ring
        self.name = name
        #: fewest and most ranks of a live ring; None for rings whose members are fixed
        self.bounds = bounds
        #: durations for what its framework waits for
        self.timing = timing
        self._lock = threading.Lock()
        self._has_changed = threading.Condition(self._lock)
        self._folder: Path | None = None
        self._step = 0
        self._state: bytes | None = None
        self._snapshot: Callable[[], tuple[Any, int]] | None = None
        self._closing = contextlib.ExitStack()

    @property
    def rank(self) -> int:
        """This member's rank."""
        return self._world[0]

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, by rank."""
        return self._world[1]

    @property
    def changes(self) -> int:
        """Changes of members since this round began; 0 but in a live ring."""
        return self._announced

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    @property
    def me(self) -> Member:
        """This member."""
        rank, members, _ = self._world
        return members[rank]

    @property
    def local_rank(self) -> int:
        """Position of this rank among those of its host."""
        return self.me.local_rank

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return self.me.local_size

    @property
    def folder(self) -> Path:
        """Private folder of this member, removed when it leaves the ring."""
        with self._lock:
            if self._folder is None:
                current = runtime.started()
                run = None if current is None else current.directory
                self._folder = rundir.make_folder(run, "fiber-ring-")
                self.on_leave(lambda: shutil.rmtree(str(self._folder), ignore_errors=True))
            return self._folder

    # -- members that come and go

    def wait_for_change(self, seen: int, timeout: float | None = None) -> bool:
        """Wait until :attr:`changes` exceeds ``seen``.

        Args:
            seen: the value of :attr:`changes` that was read last.
            timeout: most seconds to wait; no limit by default.

        Returns:
            False after ``timeout``; else ``rank``, ``size`` and ``members`` are the new ones.
        """
        with self._has_changed:
            return self._has_changed.wait_for(lambda: self._announced > seen, timeout)

    def changed(self, rank: int, members: tuple[Member, ...], change: int) -> bool:
        """Store a new member table; returns False if a newer one is known."""
        with self._lock:
            if change <= self._world[2]:
                return False
            self._world = rank, members, change
            return True

    def announce(self) -> None:
        """Publish the stored member table, once the framework has handled it, and wake waiters."""
        with self._has_changed:
            self._announced = self._world[2]
            self._has_changed.notify_all()

    # -- state for restarts

    def commit(self, state: Any, step: int | None = None) -> None:
        """Keep a state to restart from, in this process, without communication.

        When the ranks restart, the newest state of the surviving members goes to all of them.

        Args:
            state: any picklable object; it is pickled now, so it may change afterwards.
            step: orders states by age; one more than the last by default.
        """
        pickled = codec.pickled(state)
        with self._lock:
            self._step = self._step + 1 if step is None else step
            self._state = pickled

    def offer(self, snapshot: Callable[[], tuple[Any, int]]) -> None:
        """Register a function that returns the state on demand, in place of :meth:`commit`.

        It is called when the ranks restart or a member joins; the newest state goes to all members
        that begin.

        Args:
            snapshot: returns a state and its step. It is called on another thread while the
                function runs or waits for others, so it must return a consistent state. If it
                raises, the last committed state is used.
        """
        with self._lock:
            self._snapshot = snapshot

    @property
    def state(self) -> Any:
        """State that was committed last, here or before this member began; None if none was."""
        with self._lock:
            pickled = self._state
        return None if pickled is None else pickle.loads(pickled)

    @property
    def step(self) -> int:
        """Step of :attr:`state`; 0 if there is none."""
        return self._step

    def take(self, step: int, state: bytes | None) -> None:
        """Store a step and pickled state of another member."""
        with self._lock:
            self._step, self._state = step, state

    def kept(self) -> tuple[int, bytes | None]:
        """Return step and pickled state, from the registered function or the last commit."""
        if self._snapshot is not None:
            try:
                state, step = self._snapshot()
                return step, codec.pickled(state)
            except Exception:
                log.exception(
                    "fiber: rank %d of %s could not provide its state", self.rank, self.name
                )
        with self._lock:
            return self._step, self._state

    # -- cleanup

    def on_leave(self, action: Callable[[], Any]) -> None:
        """Register a function that is called when this member leaves; last in, first out."""
        self._closing.callback(action)

    def close(self) -> None:
        """Call the registered functions."""
        self._closing.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, round {self.round}>"


def current_ring() -> RingView:
    """Return the ring that this process, or this thread of the caller, is a member of.

    Raises:
        FiberError: it is not a member of a ring.
    """
    found = getattr(_local, "ring", None) or _process_ring
    if found is None:
        msg = "this process is no member of a ring; Ring(n, func).run() makes some"
        raise FiberError(msg)
    return found


def enter(ring: RingView, *, is_process_wide: bool) -> None:
    """Set the current ring of this process, or of this thread for the caller's own rank."""
    global _process_ring  # noqa: PLW0603 - a process is in one ring
    if is_process_wide:
        _process_ring = ring
    else:
        _local.ring = ring
