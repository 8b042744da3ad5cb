"""Where a block is on each host, and who there is to fetch it; pure.

One process of a host fetches it, and the others wait for that and map what it has. When it is gone
before, or gives up, the next one that waits is to fetch it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from fiber import values
from fiber.objects.memory.backing import Place

P = TypeVar("P", bound=Hashable)


@values.frozen
class Answer(Generic[P]):
    """To a process that asked where the block is."""

    who: P
    #: number of its question
    number: int
    #: where it is; None where it is to be fetched
    place: Place | None


@values.define
class _Host(Generic[P]):
    fetching: P | None = None
    waiting: deque[tuple[P, int]] = values.field(factory=deque)
    #: in the order in which they came
    copies: dict[P, Place] = values.field(factory=dict)


class Copies(Generic[P]):
    """What the owner knows."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host[P]] = {}

    def has(self, who: P) -> bool:
        """True where a process has the block."""
        return any(who in host.copies for host in self._hosts.values())

    def ask(self, host: str, who: P, number: int, *, alone: bool) -> list[Answer[P]]:
        """A process wants to know where the block is.

        Args:
            host: its host.
            who: the process.
            number: of its question.
            alone: True where it cannot map what others on its host have.
        """
        here = self._hosts.setdefault(host, _Host())
        if alone:
            return [Answer(who, number, None)]
        for other, place in here.copies.items():
            if other != who:
                return [Answer(who, number, place)]
        if here.fetching is None or here.fetching == who:
            here.fetching = who
            return [Answer(who, number, None)]
        here.waiting.append((who, number))
        return []

    def came(self, host: str, who: P, place: Place) -> list[Answer[P]]:
        """A process has the block."""
        here = self._hosts.setdefault(host, _Host())
        here.copies[who] = place
        if here.fetching == who:
            here.fetching = None
        # whoever else fetches it fetches it for itself now
        waiting, here.waiting = here.waiting, deque()
        return [Answer(other, number, place) for other, number in waiting]

    def gone(self, who: P) -> list[Answer[P]]:
        """A process has it no more, and does not fetch it."""
        answers: list[Answer[P]] = []
        for name in list(self._hosts):
            here = self._hosts[name]
            here.copies.pop(who, None)
            here.waiting = deque(one for one in here.waiting if one[0] != who)
            if here.fetching == who:
                here.fetching = None
                if here.waiting:
                    here.fetching, number = here.waiting.popleft()
                    answers.append(Answer(here.fetching, number, None))
            if here == _Host():
                del self._hosts[name]
        return answers
