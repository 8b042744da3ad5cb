"""Those who wait to be notified: the state of a condition; pure.

A notification belongs to the owner until the process that it was sent to has said that it came: if
that process is gone, the next one is woken in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict


class Sleepers:
    """The state of one condition, but for its lock. Not thread-safe."""

    def __init__(self) -> None:
        self._line = Line()
        # notifications on their way, by process
        self._under_way: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._line)

    def sleep(self, request: Request) -> Answers:
        """Somebody waits."""
        self._line.add(request)
        return []

    def notify(self, count: int) -> Answers:
        """Wake those who have waited for longest."""
        out: Answers = []
        while len(out) < count and len(self._line):
            request = self._line.first()
            if request.party is not None:
                self._under_way[request.party] += 1
            out.append(Answer(request, Verdict.YES))
        return out

    def woke(self, party: Hashable) -> None:
        """A notification has come."""
        if self._under_way[party] > 1:
            self._under_way[party] -= 1
        else:
            del self._under_way[party]

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now; nothing where it was."""
        request = self._line.remove(party, number)
        return [] if request is None else [Answer(request, Verdict.NO)]

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally."""
        self._line.remove_all(party)
        return self.notify(self._under_way.pop(party, 0))

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""
        return self.leave(party, 0)
