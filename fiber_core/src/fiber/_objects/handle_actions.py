"""What a handle does with its object, the same for the owner and for everybody else."""

from __future__ import annotations

from typing import Protocol

from fiber._objects.address import Address, Shape
from fiber._objects.queue.messages import Item
from fiber._objects.queue.ready_fd import Bell


class Source(Protocol):
    """The reading side of a lane."""

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item.

        Raises:
            queue.Empty: there is none now, or none has come in time.
            EOFError: none will ever come.
        """

    def ready(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would return or raise EOFError; False when none came in time."""

    def bell(self) -> Bell:
        """What tells that :meth:`take` would return or raise EOFError."""


class Sink(Protocol):
    """The writing side of a lane."""

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over.

        Raises:
            queue.Full: there is no room now, or none has come in time.
            BrokenPipeError: nobody reads.
        """

    def flush(self) -> None:
        """Wait until all that was put is with the owner, or the owner is gone."""

    def deliver(self) -> None:
        """Wait until all that was put arrives whatever becomes of this process."""

    def abandon(self) -> None:
        """Let the end of this process wait for nothing that was put."""


class Holdable(Protocol):
    """An object of any kind as handles in one process see it."""

    @property
    def shape(self) -> Shape:
        """What it is made of."""

    @property
    def address(self) -> Address:
        """What is pickled in its place."""

    @property
    def realm(self) -> str | None:
        """The realm of other programs that use it; None within one run."""

    def address_in(self, realm: str | None) -> Address:
        """What processes of a realm are told, of the run where it is None."""

    def hold(self, end: int, ticket: int = 0) -> bool:
        """There is one more handle of an end here; False where the object has just been let go."""

    def drop(self, end: int) -> None:
        """A handle of an end was closed."""

    def drop_soon(self, end: int) -> None:
        """A handle of an end was collected; callable whenever the collector runs."""

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle of an end is on its way."""

    def void(self, ticket: int) -> None:
        """A pickle of an end is loaded no more; callable whenever the collector runs."""


class Channels(Holdable, Protocol):
    """A queue or pipe."""

    def source(self, lane: int) -> Source:
        """The reading side of a lane."""

    def sink(self, lane: int) -> Sink:
        """The writing side of a lane."""

    def size(self, lane: int) -> int:
        """Items in a lane."""


class Tasks(Channels, Protocol):
    """A queue of tasks."""

    def finish(self, source: object) -> bool:
        """A task was done by who reads from ``source``; False where all were done already."""

    def join(self) -> None:
        """Wait until all tasks are done."""
