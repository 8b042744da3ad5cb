"""Those who wait for something, in order; and what they are told. Values of the state machines."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import TypeAlias

from fiber._base import values
from fiber.exceptions import WireError


class Verdict(enum.IntEnum):
    """How a request is answered."""

    #: yes: it is yours, it is so, it is done
    YES = 0
    #: no: it is not, or you have cancelled
    NO = 1
    #: yes, and who had it before died with it; the text says who
    INHERITED = 2
    #: no, because who had it before died with it; the text says who
    DIED = 3
    #: no: there would be more than there may be
    TOO_MANY = 4
    #: the barrier is broken
    BROKEN = 5
    #: you are the last one at the barrier: run its action
    RUN = 6


#: verdicts with which a permit is the asker's
TAKEN = frozenset({Verdict.YES, Verdict.INHERITED})


@values.define(eq=False)
class Request:
    """Somebody wants something and waits; a subclass may say whom to tell."""

    #: name of a process; None for a thread of the owner
    party: Hashable
    #: the party's number for it
    number: int = 0


@values.frozen
class Answer:
    """Tell who waits."""

    request: Request
    verdict: Verdict
    value: int = 0
    text: str = ""


Answers: TypeAlias = list[Answer]


class Line:
    """Requests in the order in which they came."""

    def __init__(self) -> None:
        self._requests: dict[tuple[Hashable, int], Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """One more at the end.

        Raises:
            WireError: its party has one of that number.
        """
        key = (request.party, request.number)
        if key in self._requests:
            msg = f"a process uses number {request.number} for two requests at once"
            raise WireError(msg)
        self._requests[key] = request

    def first(self) -> Request:
        """Take the first one out."""
        return self._requests.pop(next(iter(self._requests)))

    def remove(self, party: Hashable, number: int) -> Request | None:
        """Take one out, if it is here."""
        return self._requests.pop((party, number), None)

    def remove_all(self, party: Hashable) -> list[Request]:
        """Take those of a party out."""
        mine = [key for key in self._requests if key[0] == party]
        return [self._requests.pop(key) for key in mine]

    def clear(self) -> list[Request]:
        """Take all out."""
        everybody = list(self._requests.values())
        self._requests.clear()
        return everybody

    def has_others(self, party: Hashable) -> bool:
        """True where somebody else than a party waits."""
        return any(key[0] != party for key in self._requests)
