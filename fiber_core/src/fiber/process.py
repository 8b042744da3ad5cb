"""``Process``: the stdlib's class, started as a job of a backend."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import process as _process
from multiprocessing import util
from multiprocessing.process import (  # type: ignore[attr-defined] # the stubs do not tell
    AuthenticationString,
    BaseProcess,
    active_children,
    current_process,
    parent_process,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fiber import hints
from fiber._base.interpreter import choose_start_method, chosen_start_method
from fiber._base.log import lazy_logger
from fiber._launch.preparation import ignores_interrupts
from fiber._runtime import runtime
from fiber.exceptions import FiberError, StartError
from fiber.model import ProcessStatus, ResourceRequest

if TYPE_CHECKING:
    from fiber._launch.child import Child

log = lazy_logger()

# children are kept in its set, which the stdlib's functions and exit handler use
_stdlib: Any = _process

__all__ = [
    "AuthenticationString",
    "BaseProcess",
    "Process",
    "active_children",
    "current_process",
    "parent_process",
]


#: True once this process is ending because it was interrupted
_interrupted = False
_at_exit: util.Finalize | None = None
#: most names of processes in a message; the others are counted
_NAMED = 5


class Process(_process.BaseProcess):
    """A process on the selected backend; the same as ``multiprocessing.Process`` otherwise.

    ``@fiber.meta`` on the target, or on a subclass's ``run``, says what it needs.

    Raises:
        StartError: from ``join`` and ``exitcode``, when the platform could not start it; the text
            has the platform's message.
    """

    if TYPE_CHECKING:
        # attributes of BaseProcess that its stubs do not have
        _popen: Child | None
        _parent_pid: int
        _closed: bool
        _config: dict[str, Any]
        _target: Callable[..., Any] | None
        _args: tuple[Any, ...]
        _kwargs: dict[str, Any]

        def _check_closed(self) -> None: ...

    #: the start method of its context; None in the default one
    _start_method: str | None = None
    _chosen_method: str | None = None

    def start(self) -> None:
        """Start the child; returns once the platform has accepted it.

        Raises:
            Exception: what pickling the target or its arguments raised.
            SubmitError: the platform refused it.
        """
        self._check_closed()
        assert self._popen is None, "cannot start a process twice"
        assert self._parent_pid == os.getpid(), (
            "can only start a process object created by current process"
        )
        config: dict[str, Any] = vars(current_process())["_config"]
        # workers of a pool report that they are daemons, and may have children all the same
        assert not config.get("daemon") or config.get("fiber_may_have_children"), (
            "daemonic processes are not allowed to have children"
        )
        _stdlib._cleanup()  # noqa: SLF001 - as the stdlib's own start()
        self._chosen_method = self._start_method or chosen_start_method()
        # here, since workers start nothing as a rule
        from fiber._runtime.start import flush_standard_streams

        flush_standard_streams()
        _interrupt_children_at_exit()
        self._started_as(self._launch())

    def _started_as(self, child: Child) -> None:
        """Set the job that this process became; called by :meth:`start` and by pools."""
        self._popen = child
        # as the stdlib: the target may refer to this object
        del self._target, self._args, self._kwargs
        _stdlib._children.add(self)  # noqa: SLF001 - see above

    def _launch(self) -> Child:
        meta = hints.get_meta(self._target if self._target is not None else type(self).run)
        from fiber._launch.child import log_end
        from fiber._runtime.start import supervisor_ahead

        # the supervisor of a program's first process gets ready while the settings are read
        with supervisor_ahead(), runtime.brief_errors():
            current = runtime.current()
            return current.launcher.launch(
                self,
                resources=requested(meta, current),
                image=meta.image,
                foreground=not ignores_interrupts(),
                on_status=log_end,
            )

    def _pass_interrupt_on(self, *, again: bool) -> bool:
        try:
            return self._popen is not None and self._popen.pass_interrupt_on(again=again)
        except FiberError as error:
            log.warning("fiber: %s cannot be interrupted: %s", self.name, error)
            return False

    def interrupt(self) -> None:
        """Send it SIGINT, as Ctrl-C would; the stdlib's has it since Python 3.14."""
        self._check_closed()
        assert self._popen is not None, "can only interrupt a started process"
        self._popen.interrupt()

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """In the child: run the process until it ends."""
        choose_start_method(self._chosen_method)
        # read by the stdlib, whose own contexts keep their start method
        self._start_method = None
        self.run = _noting_interrupts(self.run)  # type: ignore[method-assign]
        beginning: Any = super()
        code: int = beginning._bootstrap(parent_sentinel)  # noqa: SLF001 - its own base's
        return code

    def _after_fork(self) -> None:
        del self._start_method
        beginning: Any = super()
        beginning._after_fork()  # noqa: SLF001 - its own base's

    def join(self, timeout: float | None = None) -> None:
        """Wait until the child has ended, or ``timeout`` seconds have passed.

        Where Ctrl-C interrupts it, children that the terminal cannot interrupt are interrupted too.

        Raises:
            StartError: it never came up.
        """
        while True:
            try:
                super().join(timeout)
                break
            except KeyboardInterrupt:
                if not util.is_exiting():
                    _interrupt(active_children(), again=True)
                    raise
                _interrupted_at_exit()
        if self._popen is None:
            return
        try:
            self._popen.raise_if_never_started()
        except StartError as error:
            # the interpreter joins us at its end, and an error would keep it from ending the rest
            if not util.is_exiting():
                raise
            if not self._popen.is_failure_logged:
                log.warning("fiber: %s", error)

    @property
    def exitcode(self) -> int | None:
        """The exit code, minus the signal that ended it, or None before that.

        Raises:
            StartError: it never came up.
        """
        self._check_closed()
        if self._popen is None:
            return None
        self._popen.raise_if_never_started()
        code: int | None = self._popen.poll()
        return code

    @property
    def exitstatus(self) -> ProcessStatus | None:
        """Status with which the process ended, or None before that; ``exitcode`` has the number alone.

        Its ``reason`` says whether a signal, the platform or its own code ended it, its ``message`` is a
        sentence with the platform's words, and ``log_tail`` has its last lines, where they are known.
        """
        self._check_closed()
        return None if self._popen is None else self._popen.end_status

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the child has ended, for ``connection.wait``."""
        self._check_closed()
        if self._popen is None:
            msg = "process not started"
            raise ValueError(msg)
        return int(self._popen.sentinel)

    def close(self) -> None:
        """Release what the object holds; the child must have ended."""
        if self._popen is not None:
            if self._popen.poll() is None:
                msg = (
                    "Cannot close a process while it is still running. "
                    "You should first call join() or terminate()."
                )
                raise ValueError(msg)
            self._popen.close()
            self._popen = None
            _stdlib._children.discard(self)  # noqa: SLF001 - see above
        self._closed = True


def requested(meta: hints.Meta | ResourceRequest, current: runtime.Runtime) -> ResourceRequest:
    """Resources of a function's ``@fiber.meta``, or of a job, with the settings as defaults."""
    return ResourceRequest(
        cpu=meta.cpu if meta.cpu is not None else current.config.cpu,
        memory=meta.memory if meta.memory is not None else current.config.memory,
        devices=meta.devices,
    )


# -- interrupts ---------------------------------------------------------------------------------------


def _noting_interrupts(run: Callable[[], None]) -> Callable[[], None]:
    """Wrap ``run`` so that the end of the process by an interrupt is noted.

    The traceback of an end by an interrupt, or by another BaseException, has no frames of Fiber
    above those of the user's function.
    """

    @functools.wraps(run)
    def running() -> None:
        global _interrupted  # noqa: PLW0603 - there is one a process
        try:
            run()
        except Exception:
            raise
        except BaseException as error:
            _interrupted = _interrupted or isinstance(error, KeyboardInterrupt)
            here = inner = error.__traceback__
            while inner is not None and _is_above_users(inner):
                inner = inner.tb_next
            if here is not None:
                here.tb_next = inner
            raise

    return running


def _is_above_users(trace: TracebackType) -> bool:
    name = str(trace.tb_frame.f_globals.get("__name__"))
    return name == "multiprocessing.process" or name.partition(".")[0] == "fiber"


def _interrupt_children_at_exit() -> None:
    """Register the exit handler that passes an interrupt on to children, which are joined then."""
    global _at_exit  # noqa: PLW0603 - there is one a process
    if _at_exit is None:
        # runs last of those before the stdlib joins children: managers and others that were started
        # after it have been shut down
        _at_exit = util.Finalize(None, _exit_by_interrupt, exitpriority=0)


def _exit_by_interrupt() -> None:
    global _interrupted  # noqa: PLW0603 - there is one a process
    last = getattr(sys, "last_type", None)
    # at a prompt it is the error of an earlier command
    is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    if isinstance(last, type) and issubclass(last, KeyboardInterrupt) and not is_interactive:
        _interrupted = True
    if _interrupted:
        _interrupt(_joined_at_exit(), again=False)


def _interrupted_at_exit() -> None:
    """Interrupt the children that this process waits for at its end; the second time end them."""
    global _interrupted  # noqa: PLW0603 - there is one a process
    children = _joined_at_exit()
    if _interrupted:
        log.warning("fiber: interrupted again: ending %s", names_of(children))
        for child in children:
            child.kill()
    else:
        _interrupted = True
        # unless the same interrupt has ended them
        if children:
            log.warning("fiber: waiting for %s; Ctrl-C again ends them", names_of(children))
        _interrupt(children, again=True)


def _joined_at_exit() -> list[BaseProcess]:
    return [child for child in active_children() if not child.daemon]


def _interrupt(children: list[BaseProcess], *, again: bool) -> None:
    """Pass an interrupt of this process on to children that have not got it from the terminal."""
    reached = [
        child
        for child in children
        if isinstance(child, Process) and child._pass_interrupt_on(again=again)  # noqa: SLF001 - our own
    ]
    if reached:
        log.warning("fiber: interrupted: SIGINT is passed on to %s", names_of(reached))


def names_of(children: Sequence[Any]) -> str:
    """Names of processes for a message."""
    names = ", ".join(child.name for child in children[:_NAMED])
    more = len(children) - _NAMED
    return names if more <= 0 else f"{names} and {more} more"
