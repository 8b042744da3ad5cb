"""A handle of something that is waited for."""

from __future__ import annotations

from typing import Generic, TypeVar

from fiber._objects.handle import Handle
from fiber._objects.handle_actions import Holdable
from fiber._objects.owned import Shared
from fiber._wire import fork

Side = TypeVar("Side", bound=Holdable)


class Waitable(Handle, Generic[Side]):
    """Held until it is collected."""

    _object: Side

    def _own(self, shared: Shared) -> None:
        """Become the first handle of a new object."""
        shared.hold(0)
        self._take_hold(shared, 0)

    def _there(self) -> Side:
        """The object, to be used.

        Raises:
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_stranger():
            fork.check()
        return self._object
