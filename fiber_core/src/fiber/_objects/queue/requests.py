"""What readers and writers want of a lane, and what it answers; values of the state machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TypeAlias

from fiber._base import values
from fiber._objects.protocol import Mode
from fiber._objects.queue.messages import Item

#: looks at what others hold before one that does not wait is told that there is nothing for it
_PATIENCE = 20


@values.define(eq=False)
class Request:
    """A reader that wants items; a subclass may say where they go."""

    reader: Hashable
    #: the reader's number for its session
    number: int = 0
    #: most items
    want: int = 1
    mode: Mode = Mode.WAIT
    #: True to be told of an item without taking it
    peek: bool = False
    #: True once it was answered and is still good for more
    kept: bool = False
    patience: int = _PATIENCE

    @property
    def is_urgent(self) -> bool:
        """True where somebody is known to wait for the answer."""
        return not self.kept and self.mode is not Mode.STANDING


@values.define(eq=False)
class Offer:
    """Items that a writer wants in; a subclass may say whom to tell."""

    writer: Hashable
    items: deque[Item]
    #: the writer's number for it
    number: int = 0
    #: False to be refused where there is no room
    wait: bool = True
    patience: int = _PATIENCE


@values.frozen
class Give:
    """Answer a request; for a reader ``first`` numbers the items."""

    request: Request
    first: int
    items: list[Item]
    #: True where the request stays
    kept: bool = False


@values.frozen
class Nothing:
    """Answer a request: there is nothing now."""

    request: Request


@values.frozen
class Ready:
    """Answer a request: there is something for whoever asks for it first."""

    request: Request


@values.frozen
class Unready:
    """Tell who was told otherwise that there is nothing now."""

    request: Request


@values.frozen
class End:
    """Answer a request: there is nothing and never will be."""

    request: Request


@values.frozen
class Accepted:
    """Answer an offer: all of it is in."""

    offer: Offer


@values.frozen
class Refused:
    """Answer an offer: there was no room."""

    offer: Offer


@values.frozen
class Broken:
    """Answer an offer: nobody reads."""

    offer: Offer


@values.frozen
class Recall:
    """Ask a reader to give back what it has not handed out."""

    reader: Hashable


@values.frozen
class Revoke:
    """Ask a writer to give up the room that was set aside for it."""

    writer: Hashable


@values.frozen
class Watch:
    """Call :meth:`Lane.overdue` in a moment."""


@values.frozen
class Drop:
    """Items that nobody will get; let go of what they hold."""

    items: list[Item]


Instruction: TypeAlias = (
    Give
    | Nothing
    | Ready
    | Unready
    | End
    | Accepted
    | Refused
    | Broken
    | Recall
    | Revoke
    | Watch
    | Drop
)
Instructions: TypeAlias = list[Instruction]
