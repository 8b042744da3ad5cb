"""A ring as one of its members sees it."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import Any

from fiber.exceptions import FiberError
from fiber.ring.model import Member
from fiber.transport import codec

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
    ) -> None:
        #: this member's rank
        self.rank = rank
        #: all members, by rank
        self.members = members
        #: how many times all ranks were started again since one failed
        self.restarts = restarts
        #: which assignment of ranks this is, from 1
        self.round = round
        #: the ring's name
        self.name = name
        self._lock = threading.Lock()
        self._step = 0
        self._state: bytes | None = None
        self._closing = contextlib.ExitStack()

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    @property
    def me(self) -> Member:
        """This member."""
        return self.members[self.rank]

    @property
    def local_rank(self) -> int:
        """Position among the ranks of this host."""
        return self.me.local_rank

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return self.me.local_size

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
        """The step and the pickle of what was committed last."""
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
