"""A ring as one of its members sees it."""

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
from fiber._ring.model import Member
from fiber._runtime import runtime
from fiber._wire import codec
from fiber.exceptions import FiberError

log = logging.getLogger("fiber")

_local = threading.local()
_of_process: RingView | None = None


class RingView:
    """What a member knows: its own rank, everybody else, and the state that the ring goes on from.

    The initializer gets it; :func:`current_ring` returns it to whatever runs in the member.
    """

    def __init__(
        self,
        *,
        rank: int,
        members: tuple[Member, ...],
        restarts: int = 0,
        round: int = 1,  # noqa: A002 - what it is
        name: str = "ring",
        bounds: tuple[int, int] | None = None,
        change: int = 0,
    ) -> None:
        #: rank, members and number of changes, which are set together
        self._world = rank, members, change
        self._announced = change
        #: how many times all ranks were started again since one failed
        self.restarts = restarts
        #: which assignment of ranks this is, from 1
        self.round = round
        #: the ring's name
        self.name = name
        #: fewest and most ranks where members come and go while ranks run; None where they do not
        self.bounds = bounds
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
        """How many times members came or went since this round began; only in a live ring."""
        return self._announced

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    @property
    def me(self) -> Member:
        """This member."""
        rank, members, _ = self._world
        return members[rank]

    @property
    def local_rank(self) -> int:
        """Position among the ranks of this host."""
        return self.me.local_rank

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return self.me.local_size

    @property
    def folder(self) -> Path:
        """A folder of this member's own, removed when it leaves."""
        with self._lock:
            if self._folder is None:
                current = runtime.started()
                run = None if current is None else current.directory
                self._folder = rundir.within(run, "fiber-ring-")
                self.on_leave(lambda: shutil.rmtree(str(self._folder), ignore_errors=True))
            return self._folder

    # -- members that come and go

    def wait_for_change(self, seen: int, timeout: float | None = None) -> bool:
        """Wait until members came or went more often than ``seen`` times.

        Args:
            seen: the value of :attr:`changes` that was looked at last.
            timeout: seconds to wait at most; without end by default.

        Returns:
            whether they have; ``rank``, ``size`` and ``members`` are the new ones then.
        """
        with self._has_changed:
            return self._has_changed.wait_for(lambda: self._announced > seen, timeout)

    def changed(self, rank: int, members: tuple[Member, ...], change: int) -> bool:
        """Members came or went; False where something newer is known."""
        with self._lock:
            if change <= self._world[2]:
                return False
            self._world = rank, members, change
            return True

    def announce(self) -> None:
        """Everything that depends on the members knows of the change: tell those that wait."""
        with self._has_changed:
            self._announced = self._world[2]
            self._has_changed.notify_all()

    # -- what a restart goes on from

    def commit(self, state: Any, step: int | None = None) -> None:
        """Note a state from which the ring could go on, in this process and at no cost to others.

        When the ring's ranks are started again, the newest state of those that are still there goes
        to all of them.

        Args:
            state: anything that can be pickled; it is pickled now, so it may change afterwards.
            step: what tells newer ones from older ones; one more than the last by default.
        """
        pickled = codec.pickled(state)
        with self._lock:
            self._step = self._step + 1 if step is None else step
            self._state = pickled

    def offer(self, snapshot: Callable[[], tuple[Any, int]]) -> None:
        """Have the state asked for only when it is wanted, in place of committing every step.

        When the ring's ranks are started again, or somebody joins them, those that are there are
        asked; the newest answer goes to all that begin.

        Args:
            snapshot: returns a state and its step. It is called on another thread while the
                function runs or waits for others, so it must return what belongs together. Where it
                raises, what was committed last counts.
        """
        with self._lock:
            self._snapshot = snapshot

    @property
    def state(self) -> Any:
        """What was committed last, by this member or before it began; None where nothing was."""
        with self._lock:
            pickled = self._state
        return None if pickled is None else pickle.loads(pickled)

    @property
    def step(self) -> int:
        """The step of :attr:`state`; 0 where there is none."""
        return self._step

    def take(self, step: int, state: bytes | None) -> None:
        """Go on from what another member committed."""
        with self._lock:
            self._step, self._state = step, state

    def kept(self) -> tuple[int, bytes | None]:
        """The step and the pickle of what was committed last, or is offered now."""
        if self._snapshot is not None:
            try:
                state, step = self._snapshot()
                return step, codec.pickled(state)
            except Exception:
                log.exception("fiber: rank %d of %s told no state", self.rank, self.name)
        with self._lock:
            return self._step, self._state

    # -- what ends with it

    def on_leave(self, action: Callable[[], Any]) -> None:
        """Have something done when this member leaves; last added first."""
        self._closing.callback(action)

    def close(self) -> None:
        """Do it."""
        self._closing.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, round {self.round}>"


def current_ring() -> RingView:
    """The ring that this process is a member of.

    Raises:
        FiberError: it is none's.
    """
    found = getattr(_local, "ring", None) or _of_process
    if found is None:
        msg = "this process is no member of a ring; Ring(n, func).run() makes some"
        raise FiberError(msg)
    return found


def enter(ring: RingView, *, of_process: bool) -> None:
    """This process, or only this thread where the ring's own caller is a member, is in a ring now."""
    global _of_process  # noqa: PLW0603 - a process is in one ring
    if of_process:
        _of_process = ring
    else:
        _local.ring = ring
