"""How much the curves measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Settings(NamedTuple):
    """Given on the command line."""

    #: rounds of which the median counts, where a round is short
    rounds: int = 5
    #: seconds that the iterations of one point may take at best; fewer are done where they take more
    seconds: float = 60.0
    #: only these numbers of workers or connections; all where there are none
    sizes: tuple[int, ...] = ()
    #: other frameworks too
    others: bool = False
    #: so little that only the code is tested
    tiny: bool = False

    def some(self, usual: T, tiny: T) -> T:
        """One of both."""
        return tiny if self.tiny else usual

    def few_of(self, usual: Sequence[int], tiny: Sequence[int]) -> list[int]:
        """Numbers of workers that are wanted."""
        return [number for number in self.some(usual, tiny) if number in (self.sizes or [number])]
