"""What an executor's tasks need of it, whether somebody still holds the executor itself or not."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import Any

from fiber._tasks.modes import Mode
from fiber._wire import codec, fork
from fiber._workers.groups import Workforce
from fiber._workers.options import Wish
from fiber.exceptions import StartError
from fiber.executor_map import MapStream
from fiber.futures import Future, Lane, broken

#: functions whose calls stay open for more tasks
_OPEN = 256
_OVER = "cannot schedule new futures after shutdown"
_ENDING = "cannot schedule new futures after interpreter shutdown"


class Core:
    """The workers of an executor and the calls they work at. Thread-safe.

    Tasks of one importable function share a call, so that they travel together where they are
    short, as the items of a map do. Anything else is a call of its own.

    Args:
        wish: what the executor was made with.
    """

    def __init__(self, wish: Wish) -> None:
        self.workforce = Workforce(wish, "executor")
        self._lock = threading.RLock()
        self._lanes: OrderedDict[int, Lane] = OrderedDict()
        #: calls of one task each, and those that map made, until they are done
        self._others: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._maps: weakref.WeakSet[MapStream] = weakref.WeakSet()
        self._began = False
        #: False once nobody holds the executor itself
        self.is_held = True
        self._finishing = threading.Lock()
        self._is_finished = False
        self._finisher: threading.Thread | None = None
        self._terminate: util.Finalize | None = None
        self._at_exit: util.Finalize | None = None

    def submit(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Have ``func(*args, **kwargs)`` called in a worker.

        Raises:
            RuntimeError: it was shut down.
            BrokenExecutor: no worker can be kept alive.
        """
        # before any lock, which may be held for ever in a process that the user forked
        fork.check()
        while type(func) is functools.partial and not vars(func):
            args, kwargs = (*func.args, *args), {**func.keywords, **kwargs}
            func = func.func
        with self._lock:
            self._begin()
            if not _has_home(func):
                lane = self._new_lane(func, (args, kwargs))
                self._others.add(lane)
                return lane.only
            found = self._lanes.get(id(func))
            if found is None:
                found = self._new_lane(func)
                if found.error is not None:
                    return found.only
                self._lanes[id(func)] = found
                if len(self._lanes) > _OPEN:
                    self._close_one()
            return found.submit(args, kwargs)

    def map(
        self, func: Callable[..., Any], stream: MapStream, items: list[Any], chunk: int, grows: bool
    ) -> None:
        """Add a call whose results go to ``stream``.

        Raises:
            RuntimeError: it was shut down.
            BrokenExecutor: no worker can be kept alive.
        """
        with self._lock:
            self._begin()
            with _telling():
                crew, call = self.workforce.prepare(
                    func, Mode.STARMAP, stream, None if grows else items, chunk
                )
            if call is not None:
                stream.belongs_to(crew.dispatcher, call)
                self._maps.add(stream)
                crew.dispatcher.add(call)
                if grows:
                    stream.add(items)

    def check(self) -> None:
        """Raise where no more tasks are taken."""
        fork.check()
        self.workforce.check()

    # -- its end

    def shut_down(self, *, cancel: bool) -> None:
        """Take no more tasks; let what there is be done, or cancel what was not sent."""
        self._close(RuntimeError(_OVER), cancel=cancel)

    def finish(self) -> None:
        """Wait until all is done and the workers are gone; after :meth:`shut_down`."""
        if self.workforce.callbacks.is_current():
            # which ends before the rest does
            self.finish_later()
            return
        with self._finishing:
            if not self._began or self._is_finished:
                return
            self.workforce.join()
            self._is_finished = True
        for finalizer in (self._terminate, self._at_exit):
            if finalizer is not None:
                finalizer.cancel()

    def finish_later(self) -> None:
        """The same on a thread of its own."""
        if not self._began or self._is_finished or self._finisher is not None:
            return
        self._finisher = threading.Thread(
            target=self._shut_down_and_finish, name=f"{self.workforce.name}-end", daemon=True
        )
        # while the interpreter ends no thread can be started, and what follows waits for all
        with contextlib.suppress(RuntimeError):
            self._finisher.start()

    def _shut_down_and_finish(self) -> None:
        self.shut_down(cancel=False)
        self.finish()

    def terminate(self) -> None:
        """End the workers at once; what is not done is a ``BrokenExecutor``."""
        self._close(RuntimeError(_OVER), cancel=False)
        if self._terminate is not None:
            self._terminate()
        if self._at_exit is not None:
            self._at_exit.cancel()

    def exit(self) -> None:
        """The interpreter ends: finish first."""
        self._close(RuntimeError(_ENDING), cancel=False)
        self.finish()

    def _close(self, refusal: BaseException, *, cancel: bool) -> None:
        with self._lock:
            self.workforce.refuse(refusal)
            calls: list[Lane | MapStream] = [*self._lanes.values(), *self._others, *self._maps]
            # kept where they are found again, since they may be cancelled later
            self._others.update(self._lanes.values())
            self._lanes.clear()
            for call in calls:
                call.close()
        if cancel:
            for call in calls:
                call.cancel_all()

    # -- inside

    def _begin(self) -> None:
        self.check()
        if not self._began:
            self.workforce.begin()
            self._terminate = self.workforce.end_with(self.workforce)
            # before the workers are ended, as futures that are pending are waited for
            self._at_exit = util.Finalize(None, _exit, args=(weakref.ref(self),), exitpriority=20)
            self._began = True

    def _new_lane(self, func: Any, task: Any = None) -> Lane:
        with _telling():
            return Lane(self.workforce, func, task)

    def _close_one(self) -> None:
        _, lane = self._lanes.popitem(last=False)
        self._others.add(lane)
        lane.close()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Raise what keeps all workers from coming up as the executor's own error."""
    try:
        yield
    except StartError as error:
        raise broken(error) from error


def _has_home(func: Any) -> bool:
    """True where ``func`` goes by reference, so that it is the same function each time."""
    if not isinstance(func, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    name = getattr(func, "__module__", None)
    if name in {"__main__", "__mp_main__"} and not codec.main_by_reference():
        return False
    found: Any = sys.modules.get(name) if isinstance(name, str) else None
    for part in func.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is func


def _exit(core: weakref.ref[Core]) -> None:
    """The interpreter ends."""
    held = core()
    if held is not None:
        held.exit()
