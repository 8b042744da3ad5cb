"""The workers behind a pool or an executor: a crew for each set of needs, and what is added to them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from multiprocessing import util
from typing import Any

from fiber import hints
from fiber._base.callbacks import Callbacks
from fiber._runtime.start import flush_standard_streams, starting
from fiber._tasks.call import Call, Sink
from fiber._tasks.modes import Mode
from fiber._workers.group import Crew, CrewOptions, Needs
from fiber._workers.options import Wish, require_positive
from fiber._workers.pool_memory import PoolMemory
from fiber._workers.pool_process import PoolWorker
from fiber.exceptions import TerminatedError
from fiber.process import requested

_numbers = itertools.count(1)


class Workforce:
    """Crews by what functions ask for. Thread-safe.

    Args:
        wish: what its owner was made with.
        kind: first part of its name.

    Raises:
        TypeError: the initializer cannot be called, or a number is none.
        ValueError: a number makes no sense.
    """

    def __init__(self, wish: Wish, kind: str) -> None:
        self._runtime = starting(wish.judge)
        size, least, most = wish.judge(self._runtime)
        initializer, args = wish.initializer, tuple(wish.initargs)
        self._error_handling = wish.error_handling
        self._options = CrewOptions(
            size=size,
            least=least,
            most=most,
            quota=wish.quota,
            per_job=wish.per_job,
            max_attempts=wish.max_attempts or self._runtime.config.max_attempts,
            memory=PoolMemory(self._runtime),
            make_process=lambda target: PoolWorker(target, initializer, args),
        )
        self._name = f"{kind}-{next(_numbers)}"
        #: of its threads
        self.name = f"fiber-{self._name}"
        #: workers that it is to have at first
        self.wanted = size
        self._lock = threading.RLock()
        self._refusal: BaseException | None = None
        self._default = self._needs(initializer)
        self._used_default = False
        self._crews: dict[tuple[Any, ...], Crew] = {}
        #: runs users' callbacks
        self.callbacks = Callbacks(f"{self.name}-callbacks")

    def begin(self) -> None:
        """Start the first workers.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        flush_standard_streams()
        crew = self._crews[self._default.key] = self._new_crew(self._default)
        try:
            crew.begin()
        except BaseException:
            crew.terminate()
            crew.join()
            raise

    def end_with(self, owner: object) -> util.Finalize:
        """Have everything ended at once when ``owner`` is collected, or the program exits."""
        return util.Finalize(owner, _end, args=(self._crews, self.callbacks), exitpriority=15)

    # -- what it is

    @property
    def size(self) -> int:
        """Workers that are kept."""
        return sum(crew.fleet.size for crew in self._crews.values())

    def processes(self) -> list[Any]:
        """The workers' process objects."""
        return [process for crew in self._crews.values() for process in crew.processes()]

    # -- work

    def refuse(self, refusal: BaseException) -> None:
        """Take no more calls: whoever adds one gets an exception like this; the first one counts."""
        with self._lock:
            self._refusal = self._refusal or refusal

    def check(self) -> None:
        """Raise where no more calls are taken."""
        refusal = self._refusal
        if refusal is not None:
            # one of its own for each caller, so that tracebacks do not pile up
            raise type(refusal)(*refusal.args)

    def prepare(
        self,
        func: Any,
        mode: Mode,
        sink: Sink,
        items: list[Any] | None,
        chunk: int = 1,
        begun: Callable[[int, int], None] | None = None,
    ) -> tuple[Crew, Call | None]:
        """A call that is yet to be added; a function that cannot be pickled breaks its sink.

        Raises:
            Exception: no more calls are taken, or no worker can be kept alive.
        """
        meta = hints.get_meta(func)
        crew = self._crew(func, meta)
        try:
            call = crew.dispatcher.prepare(
                func,
                mode,
                sink,
                items=items,
                chunksize=None if chunk == 1 else chunk,
                retry=self._error_handling if meta.retry is None else meta.retry,
                begun=begun,
            )
        except Exception as error:
            # a function that cannot be pickled is a failed task, as in multiprocessing
            sink.broken(error)
            return crew, None
        return crew, call

    def add(
        self, func: Any, mode: Mode, sink: Sink, items: list[Any] | None, chunk: int = 1
    ) -> tuple[Crew, Call | None]:
        """The same, added."""
        crew, call = self.prepare(func, mode, sink, items, chunk)
        if call is not None:
            crew.dispatcher.add(call)
        return crew, call

    # -- its life

    def resize(self, processes: int) -> None:
        """Keep so many workers of each crew from now on."""
        require_positive("processes", processes)
        with self._lock:
            self.check()
            for crew in self._crews.values():
                if crew.began:
                    crew.resize(processes)

    def join(self) -> None:
        """Wait until all is done and the workers have ended; see :meth:`refuse`."""
        crews = list(self._crews.values())
        for crew in crews:
            crew.dispatcher.wait_drained(self._refusal or TerminatedError("this has ended"))
        for crew in crews:
            crew.retire()
        for crew in crews:
            crew.join()
        self.callbacks.close()

    # -- inside

    def _needs(self, function: Any) -> Needs:
        meta = hints.get_meta(function)
        return Needs(resources=requested(meta, self._runtime), image=meta.image)

    def _new_crew(self, needs: Needs) -> Crew:
        name = self._name if not self._crews else f"{self._name}.{len(self._crews)}"
        return Crew(self._runtime, needs, self._options, name=name)

    def _crew(self, function: Any, meta: hints.Meta) -> Crew:
        """The workers that have what a function asks for; the first ones where it asks nothing."""
        needs = self._needs(function) if meta.asks else self._default
        with self._lock:
            self.check()
            crew = self._crews.get(needs.key)
            if crew is None:
                crew = self._crews[needs.key] = self._new_crew(needs)
            default = self._crews[self._default.key]
            if crew is default:
                self._used_default = True
            elif not self._used_default:
                # nobody has used the first workers, and they hold what these may need
                default.rest()
        crew.begin()
        if crew.error is not None:
            raise crew.error
        return crew


def _end(crews: dict[tuple[Any, ...], Crew], callbacks: Callbacks) -> None:
    """What becomes of it when its owner is terminated or collected, or the program exits."""
    for crew in list(crews.values()):
        crew.dispatcher.end(TerminatedError("the pool was terminated before the task was done"))
        crew.terminate()
    # an owner may be collected on any thread; one of ours would wait for itself
    waits = not threading.current_thread().name.startswith("fiber-")
    for crew in list(crews.values()):
        crew.join(10 if waits else 0)
    callbacks.close(1 if waits else 0)
