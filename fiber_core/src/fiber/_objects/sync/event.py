"""Something that is so or not, and who waits until it is: the state of an event; pure."""

from __future__ import annotations

from collections.abc import Hashable

from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict


class Flag:
    """The state of one event. Not thread-safe."""

    def __init__(self) -> None:
        #: True where nobody has to wait
        self.is_set = False
        self._line = Line()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    def ask(self, request: Request, *, wait: bool) -> Answers:
        """Somebody wants to know, or to hear when it is set."""
        if self.is_set or not wait:
            return [Answer(request, Verdict.YES if self.is_set else Verdict.NO)]
        self._line.add(request)
        return []

    def set(self) -> Answers:
        """Set it. All that wait now go on, though it is cleared at once."""
        self.is_set = True
        return [Answer(request, Verdict.YES) for request in self._line.clear()]

    def clear(self) -> None:
        """Unset it."""
        self.is_set = False

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now; nothing where it was."""
        request = self._line.remove(party, number)
        return [] if request is None else [Answer(request, Verdict.NO)]

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally."""
        self._line.remove_all(party)
        return []

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""
        self._line.remove_all(party)
        return []
