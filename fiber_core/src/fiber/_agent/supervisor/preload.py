"""Modules that are imported before the first fork, so that every child has them at no cost."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base import values

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import JobSpec

#: name that stands for the libraries of the main module
MAIN = "__main__"
#: what the program has asked for, beginning with the standard library's default
_requested: list[str] = [MAIN]
#: beginnings of the names of modules of objects that travel to processes: a process that gets one
#: needs most of those that its parent has, some forty, and imports what its supervisor has not
_OBJECTS = (
    "fiber._objects.",
    "fiber.connection",
    "fiber.queues",
    "fiber.sharedctypes",
    "fiber.sharing",
    "fiber.synchronize",
)


def is_fibers(module: str) -> bool:
    """True for a module of Fiber's: its import is short and has no effects, at any time."""
    return module.startswith("fiber.")


def was_requested(module: str) -> bool:
    """True for a module that the program has named."""
    return module in _requested


def request(modules: Iterable[str]) -> None:
    """Have modules imported by supervisors before the next process starts.

    Those of the main module are imported from now on if ``"__main__"`` is among them, and else no more.
    """
    names = list(modules)
    if MAIN in _requested:
        _requested.remove(MAIN)
    _requested.extend(name for name in names if name != MAIN)
    if MAIN in names:
        _requested.append(MAIN)


class PreloadRequests:
    """Passes requested modules, those of the main module and of objects in use on to one backend, each module once.

    Args:
        backend: the backend.
        loaded: the modules of this process.
        main: names the libraries of the main module; None in a process that is not the master, from whom its supervisor has
            them.
    """

    def __init__(
        self,
        backend: Backend,
        loaded: Mapping[str, object] = sys.modules,
        *,
        main: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self._backend = backend
        self._loaded = loaded
        self._main = main
        self._sent: set[str] = {MAIN}
        self._seen = self._seen_main = 0
        self._path = list(sys.path)

    def send(self, specs: Iterable[JobSpec] = ()) -> None:
        """Pass on the modules requested, and those imported, since the last call.

        Args:
            specs: jobs that are about to be submitted.
        """
        wanted = [*_requested, *self._new_libraries(specs), *self._new_objects()]
        new = tuple(dict.fromkeys(name for name in wanted if name not in self._sent))
        if new:
            self._sent.update(new)
            self._backend.preload(new)

    def _new_libraries(self, specs: Iterable[JobSpec]) -> Iterable[str]:
        if self._main is None or MAIN not in _requested or self._seen_main == len(self._loaded):
            return ()
        # numerical libraries read the number of their threads while they are imported: a job with a number of
        # CPUs sets it in its own environment. And a supervisor has the path with which it was started
        if any(spec.resources.cpu is not None for spec in specs) or self._path != sys.path:
            return ()
        self._seen_main = len(self._loaded)
        return self._main()

    def _new_objects(self) -> list[str]:
        # to look is cheap as long as nothing was imported
        if self._seen == len(self._loaded):
            return []
        self._seen = len(self._loaded)
        return [name for name in list(self._loaded) if name.startswith(_OBJECTS)]


def replace_environ(environ: Mapping[str, str]) -> None:
    """Make ``environ`` the environment of this process."""
    # most of it is there already: to write a page is to copy it
    zone = os.environ.get("TZ")
    for name in [name for name in os.environ if name not in environ]:
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone:
        # the C library has noted it
        time.tzset()


#: signals for which a supervisor has handlers
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
#: handlers of these signals that imports have set
_handlers: dict[int, Any] = {}
#: environment variables that imports have set, changed or deleted: values before and after
_variables: dict[str, tuple[str | None, str | None]] = {}


def adopt_effects() -> None:
    """Give this fork what imports have set, as if it had imported the modules itself.

    The supervisor has handlers of its own, and a fork has the environment of its submitter.
    """
    for signum, handler in _handlers.items():
        signal.signal(signum, handler)
    for name, (before, after) in _variables.items():
        # unless it was set to something else since
        if os.environ.get(name) == before:
            _set_variable(name, after)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _handlers_now() -> dict[int, Any]:
    found = {signum: signal.getsignal(signum) for signum in signal.valid_signals()}
    # one that was not set by Python is None
    return {signum: handler for signum, handler in found.items() if handler is not None}


def _note_effects(environ: Mapping[str, str], handlers: Mapping[int, Any]) -> None:
    """Note what has changed since, and give the supervisor its own handlers back.

    That waits for the last import, as handlers of a package call those that another has set before.
    """
    for signum, now in _handlers_now().items():
        handler = handlers.get(signum, signal.SIG_DFL)
        if now != handler:
            _handlers[signum] = now
            signal.signal(signum, handler)
    for name in {*environ, *os.environ}:
        before, after = environ.get(name), os.environ.get(name)
        if before != after:
            _variables[name] = before, after


@values.frozen
class Preloaded:
    """Outcome of imports."""

    #: modules that could not be imported, and why
    failures: Mapping[str, str]
    #: modules that each process is to import by itself: a fork has none of the threads and timers that the import
    #: left, would use its child processes and connections together with others, and does not set up logging as it
    #: would if it had run the program's statements before the import; nor may there be half of a package whose import
    #: failed, as one does that the program sets up before
    excluded: tuple[str, ...]


#: level of the root logger as it is before anybody sets it
_WARNING = 30


def _logging_settings() -> tuple[Any, ...]:
    # not imported here: fiber does without it
    root = getattr(sys.modules.get("logging"), "root", None)
    return (_WARNING,) if root is None else (*root.handlers, root.level)


def _kept_by_process() -> set[object]:
    """What each process should have of its own: threads, child processes, connections, and settings of logging."""
    from fiber._agent.supervisor import orphans

    # threads of C libraries are not counted: such a library that may be forked starts them again
    found: set[object] = {
        *threading.enumerate(),
        *orphans.children(os.getpid()),
        _logging_settings(),
    }
    folder = "/proc/self/fd"
    # other systems than Linux have none
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):  # noqa: PTH208 - for each module
            with contextlib.suppress(OSError):
                opened = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - as above
                # forks share files of the program, too
                if opened.startswith(("socket:", "pipe:", "anon_inode:")):
                    found.add((number, opened))
    return found


def _stop_timers() -> bool:
    """Stop timers; returns whether there were any."""
    found = False
    for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        found = any(signal.setitimer(which, 0)) or found
    return found


def _import(name: str, failures: dict[str, str]) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:
        # whatever a module does while it is imported, children can do without the head start
        failures[name] = f"{type(error).__name__}: {error}"


def preload_fibers(
    modules: Iterable[str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Import modules of Fiber's, or that have no more effects; returns those that could not be imported, and why.

    Args:
        modules: their names.
        environ: as of :func:`preload`.
    """
    if environ is not None:
        replace_environ(environ)
    failures: dict[str, str] = {}
    for name in modules:
        _import(name, failures)
    return failures


def preload(
    modules: Iterable[str],
    environ: Mapping[str, str] | None = None,
    *,
    on_import: Callable[[str], None] = lambda _: None,
) -> Preloaded:
    """Import modules of any kind.

    Args:
        modules: their names.
        environ: environment of this process from now on: that of the program, whose changes libraries read
            while they are imported; None: as it is.
        on_import: called with each name before its import.
    """
    if environ is not None:
        replace_environ(environ)
    environ = dict(os.environ)
    handlers, mask = _handlers_now(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    failures: dict[str, str] = {}
    excluded = []
    kept = _kept_by_process()
    for name in modules:
        on_import(name)
        count = len(sys.modules)
        _import(name, failures)
        before, kept = kept, _kept_by_process()
        is_half = name in failures and len(sys.modules) > count
        if _stop_timers() or kept - before or is_half:
            excluded.append(name)
    _note_effects(environ, handlers)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return Preloaded(failures, tuple(excluded))
