"""When the processes of a job hear that the platform takes its place away; pure, the clock is passed in.

A worker of a pool need not end at once: its parent gives it nothing new, and has it exit as soon as it
is done with what it has begun. It hears of SIGTERM when that takes too long.
"""

from __future__ import annotations

__all__ = ["Leaving"]

#: seconds that a parent may be out of reach before processes are told without it
_MEET = 1.0
#: seconds before the platform's SIGKILL at which processes hear of SIGTERM: at most, and as a part of all
_RESERVE, _PART = 2.0, 0.25


class Leaving:
    """Whether SIGTERM waits, and how long.

    Args:
        grace: seconds from the platform's SIGTERM to its SIGKILL, for a job whose parent can have it
            exit; None where processes are told at once.
    """

    def __init__(self, grace: float | None) -> None:
        self._grace = grace
        self._due: float | None = None
        self._meet_by: float | None = None
        #: True once the platform has asked, and as long as processes have not been told
        self.is_on = False

    def asked(self, now: float, *, parent_hears: bool) -> bool:
        """The platform wants the job gone; True where its processes are to be told now.

        Args:
            now: the moment.
            parent_hears: True where there is a connection.
        """
        if self._grace is None or self._due is not None:
            # whoever asks a second time does not want to wait
            self.is_on = False
            return True
        self.is_on = True
        self._due = now + self._grace - min(_RESERVE, _PART * self._grace)
        self._meet_by = None if parent_hears else now + _MEET
        return False

    def parent_heard(self) -> None:
        """The parent was told."""
        self._meet_by = None

    @property
    def due(self) -> float | None:
        """When processes are to be told; None where nothing is waited for."""
        if not self.is_on or self._due is None:
            return None
        return self._due if self._meet_by is None else min(self._due, self._meet_by)

    def is_due(self, now: float) -> bool:
        """True, once, where they are to be told now."""
        if self.due is None or now < self.due:
            return False
        self.is_on = False
        return True
