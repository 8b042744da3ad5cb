"""A lane whose items are tasks: counted until they are done, and back when their reader dies; pure.

Handing an item out settles it with the lane. Here it stays in its reader's book until that reader
says that a task is done. Readers say so in the order in which they got them; who says so without
having any does it for somebody else, as the stdlib lets everybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from operator import itemgetter

from fiber._objects.queue.in_flight import Book, Placed, Progress
from fiber._objects.queue.messages import Item, Laden
from fiber._objects.queue.requests import Drop, Give, Instructions
from fiber._objects.queue.state import Lane
from fiber.exceptions import WireError

_position = itemgetter(0)


def _none_done() -> int:
    return 0


class TaskBook(Book):
    """What one reader has, with the tasks among it that were handed out and are not done."""

    __slots__ = ("_done", "_seen", "has_died", "is_ending", "tasks")

    def __init__(self, progress: Callable[[], Progress] | None = None) -> None:
        if progress is None:
            super().__init__()
        else:
            super().__init__(progress)
        #: handed out and not done
        self.tasks: deque[Placed] = deque()
        #: True where the reader is gone without having ended by itself
        self.has_died = False
        #: True where the reader has said that it ends by itself
        self.is_ending = False
        # tasks done by its own account: what the owner can see of it, and what it was told
        self._seen: Callable[[], int] = _none_done
        self._done = 0

    def watch(self, seen: Callable[[], int]) -> None:
        """Have the reader's own account of what it has done, which may run ahead of its words."""
        self._seen = seen

    def settle(self, upto: int) -> None:
        """Items up to a number were handed out: they are tasks now."""
        handed = list(islice(self._unsettled, max(0, upto - self.settled)))
        super().settle(upto)
        self.tasks.extend(handed)

    def done(self, total: int) -> int:
        """The reader has done so many tasks by now; how many of them are news.

        Raises:
            WireError: it was not given so many.
        """
        if total > self.delivered:
            msg = f"a reader has done {total} tasks of {self.delivered}"
            raise WireError(msg)
        news = max(0, total - self._done)
        self._done += news
        return news

    def leave(self) -> int:
        """The reader is gone: what it has handed out are tasks; how many were done unheard of."""
        back = {position for position, _ in self.remains()}
        kept = [placed for placed in self._unsettled if placed[0] not in back]
        self.tasks.extend(kept)
        return self.done(min(self._seen(), self.delivered))


class TaskLane(Lane):
    """The state of a lane of tasks. Not thread-safe."""

    def __init__(self, *, maxsize: int = 0) -> None:
        super().__init__(maxsize=maxsize)
        #: tasks that came in and are not done
        self.unfinished = 0
        # handed out, and with nobody from whom they could come back: their references, if any
        self._loose: deque[Item | None] = deque()

    # -- tasks

    def finish(self, reader: Hashable) -> Instructions | None:
        """Somebody has done a task; None where all are done already."""
        if not self.unfinished:
            return None
        self.unfinished -= 1
        item = self._oldest(reader)
        # what is done is loaded no more
        return [] if item is None else [Drop([item])]

    def finish_all(self, reader: Hashable, upto: int, total: int) -> Instructions:
        """A reader was handed all up to a number, and has done so many tasks by now.

        Raises:
            WireError: it was not given so many.
        """
        out = self.settle(reader, upto)
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            for _ in range(book.done(total)):
                out += self.finish(reader) or []
        return out

    def end(self, reader: Hashable) -> None:
        """A reader ends by itself, having done with its tasks what it wanted."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.is_ending = True

    def die(self, reader: Hashable) -> None:
        """A reader is about to be lost: its tasks come back, unless it has said that it ends."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.has_died = not book.is_ending

    def watch(self, reader: Hashable, seen: Callable[[], int]) -> None:
        """Have a reader's own account of what it has done."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.watch(seen)

    def _oldest(self, reader: Hashable) -> Item | None:
        """Take a task off the books: of the reader, else of nobody, else the oldest of others."""
        books = [book for book in self._books.values() if isinstance(book, TaskBook) and book.tasks]
        own = self._books.get(reader)
        if isinstance(own, TaskBook) and own.tasks:
            return own.tasks.popleft()[1]
        if self._loose:
            return self._loose.popleft()
        if books:
            return min(books, key=lambda book: book.tasks[0][0]).tasks.popleft()[1]
        return None

    # -- what a lane does, with tasks

    def put_now(self, item: Item) -> bool:
        """See :class:`Lane`."""
        came = super().put_now(item)
        self.unfinished += came
        return came

    def take_now(self) -> Item | None:
        """See :class:`Lane`; the owner's own death ends the lane, so nothing could come back."""
        item = super().take_now()
        if item is not None:
            self._release(item)
        return item

    def untake(self, item: Item) -> Instructions:
        """See :class:`Lane`."""
        self._loose.remove(item if isinstance(item, Laden) else None)
        return super().untake(item)

    def open(self, reader: Hashable, progress: Callable[[], Progress] | None = None) -> None:
        """See :class:`Lane`."""
        if reader not in self._books:
            self._books[reader] = TaskBook(progress)

    def lose(self, reader: Hashable) -> Instructions:
        """See :class:`Lane`; the tasks of one that died come back, those of others are nobody's."""
        book = self._books.get(reader)
        out: Instructions = []
        if isinstance(book, TaskBook):
            for _ in range(book.leave()):
                out += self.finish(reader) or []
            if book.has_died:
                self._put_back(sorted(book.tasks, key=_position))
            else:
                for _, item in book.tasks:
                    self._release(item)
        return out + super().lose(reader)

    def advance(self) -> Instructions:
        """See :class:`Lane`."""
        out = super().advance()
        for one in out:
            if isinstance(one, Give) and one.request.reader is None:
                for item in one.items:
                    self._release(item)
        return out

    def _let_in(self, came: Iterable[Item]) -> None:
        tasks = list(came)
        self.unfinished += len(tasks)
        super()._let_in(tasks)

    def _release(self, item: Item) -> None:
        # only what holds references is of any use once it was loaded for good
        self._loose.append(item if isinstance(item, Laden) else None)
