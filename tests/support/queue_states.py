"""States of queues, and short words for events and commands in tests of them."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from fiber._objects.queue.requests import Deliver, Offer
from fiber._objects.queue.state import QueueState


def offer(*items: Any, writer: str = "writer", wait: bool = True) -> Offer:
    """An offer of a writer."""
    return Offer(writer, deque(items), wait=wait)


def filled(*items: Any, kind: type[QueueState] = QueueState, **limits: Any) -> Any:
    """A queue that has these items."""
    state = kind(**limits)
    for item in items:
        assert state.put_now(item)
    return state


def only(commands: Iterable[Any], *kinds: type) -> list[Any]:
    """The commands of some kinds."""
    return [one for one in commands if isinstance(one, kinds)]


def given(commands: Iterable[Any]) -> list[Any]:
    """The items that commands deliver, in order."""
    return [item for one in only(commands, Deliver) for item in one.items]
