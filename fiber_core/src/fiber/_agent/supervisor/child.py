"""Forked child of a supervisor: its environment, the fork, and how it becomes the job's process.

:func:`spawn` forks. In the child it raises :class:`InChild`, which unwinds to the supervisor's main
function; that closes the supervisor's descriptors and calls :func:`become`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import resource
import signal
import socket
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fiber._agent.supervisor import Inheritance, inherit, kernel
from fiber._agent.supervisor.devices import granted_variable
from fiber._agent.supervisor.jobs import NOT_RUNNABLE, NOT_STARTED
from fiber._agent.supervisor.messages import Attributes
from fiber._agent.supervisor.preload import HANDLED, adopt_effects, replace_environ
from fiber._base import values
from fiber._base.entry_points import load_object
from fiber._wire.descriptors import Descriptors
from fiber.model import JobSpec

#: variables with the number of threads that numerical libraries use
THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(inherited: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """Environment of a job: the inherited one, changed by the spec's ``unset_env`` and ``env``.

    Libraries start as many threads as the machine has CPUs. For a job with fewer CPUs the number is
    set in :data:`THREAD_COUNTS`, unless the environment has one already.
    """
    result = {key: value for key, value in inherited.items() if key not in spec.unset_env}
    result.update(spec.env)
    if spec.resources.cpu is not None:
        count = str(max(1, math.ceil(spec.resources.cpu)))
        for name in THREAD_COUNTS:
            result.setdefault(name, count)
    return result


@values.frozen(kw_only=True)
class ChildPlan:
    """Everything that a forked child needs; made before the fork."""

    #: the job
    job_id: str
    #: position within it
    index: int
    #: process id of the supervisor
    supervisor: int
    #: its run directory
    run_directory: str
    #: ``module:function``; None to run ``argv``
    entry: str | None
    #: program and arguments
    argv: Sequence[str]
    #: the whole environment
    environ: Mapping[str, str] = values.field(repr=False)
    #: working directory
    cwd: str
    #: umask, priority, CPUs and limits of its submitter; None: the supervisor's
    attributes: Attributes | None = None
    #: True for one that may talk with the program at every step: it stays in the program's session
    foreground: bool = False
    #: for the entry function, or for a descriptor of the program's
    private: bytes | None = values.field(repr=False)
    #: files to write this process's id to, before it allocates anything: control groups
    groups: Sequence[str] = ()
    #: granted devices with the pickled provider of their kind
    devices: Sequence[tuple[bytes, Sequence[Any]]] = ()
    #: soft limit of descriptors that the supervisor was started with
    descriptor_limit: int | None = None
    #: write end: the error that kept the program from running; closed when it runs
    report: int
    #: write ends of the output pipes
    stdout: int
    stderr: int
    #: this process's channel to the supervisor; None for programs
    channel: int | None


def become(plan: ChildPlan) -> NoReturn:
    """Become the process of a plan; the supervisor's descriptors must be closed already."""
    try:
        _set_up(plan)
        if plan.entry is None:
            _execute(plan)
        function = _announce(plan)
    except BaseException as error:
        words = str(error) or type(error).__name__
        with contextlib.suppress(OSError):
            os.write(plan.report, words.encode("utf-8", "replace")[:4000])
        os._exit(NOT_RUNNABLE if isinstance(error, PermissionError) else NOT_STARTED)
    os._exit(_call(function, plan))


def _set_up(plan: ChildPlan) -> None:
    if plan.foreground:
        kernel.leave_group()
    else:
        os.setsid()
    if not kernel.die_with_parent(plan.supervisor):
        os._exit(NOT_STARTED)
    # as if it had been executed: a fork has its supervisor's name, and is none
    kernel.set_title(os.path.basename(sys.executable))  # noqa: PTH119 - as little code as possible
    _reset_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (plan.stdout, 1), (plan.stderr, 2)):
        if source == target:
            os.set_inheritable(target, True)
        else:
            os.dup2(source, target, inheritable=True)
    for source in (null, plan.stdout, plan.stderr):
        if source > 2:
            os.close(source)
    for path in plan.groups:
        Path(path).write_text("0\n", encoding="ascii")
    _limit(plan)
    replace_environ(plan.environ)
    for provider, devices in plan.devices:
        os.environ.update(_device_environment(provider, devices))
    if plan.devices:
        granted = [device for _, devices in plan.devices for device in devices]
        os.environ.update(granted_variable(plan.run_directory, plan.job_id, granted))
    try:
        os.chdir(plan.cwd)
    except OSError as error:
        msg = f"cannot change to the working directory: {error}"
        raise OSError(msg) from error


def _limit(plan: ChildPlan) -> None:
    if plan.attributes is not None:
        plan.attributes.adopt()
    elif plan.descriptor_limit is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan.descriptor_limit, hard))


def _reset_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _device_environment(provider: bytes, devices: Sequence[Any]) -> Mapping[str, str]:
    import pickle

    return dict(pickle.loads(provider).environment(devices))


def _execute(plan: ChildPlan) -> NoReturn:
    environ = dict(os.environ)
    if plan.private is not None:
        descriptor = kernel.private_descriptor(plan.private, plan.run_directory)
        os.set_inheritable(descriptor, True)
        environ["FIBER_BOOTSTRAP"] = f"fd:{descriptor}"
    # an interpreter ignores these; a program expects them as the system has them
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvpe(plan.argv[0], list(plan.argv), environ)  # noqa: S606 - that is the job
    except (OSError, ValueError) as error:
        # ValueError: a null character in an argument or a variable
        msg = f"cannot run {plan.argv[0]!r}: {getattr(error, 'strerror', None) or error}"
        kind = OSError if isinstance(error, FileNotFoundError) else PermissionError
        raise kind(msg) from error


def _announce(plan: ChildPlan) -> Any:
    if plan.channel is not None:
        channel = socket.socket(fileno=plan.channel)
        channel.setblocking(True)
        inherit(
            Inheritance(
                channel=channel,
                run_directory=plan.run_directory,
                supervisor=plan.supervisor,
                job_id=plan.job_id,
                index=plan.index,
                pid=os.getpid(),
            )
        )
    gc.enable()
    adopt_effects()
    _seed_generators()
    _forget_exit_functions()
    for stream in (sys.stdout, sys.stderr):
        # pipes to the supervisor are buffered like terminals: each line is seen when it is written
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return load_object(plan.entry or "")


def _seed_generators() -> None:
    """Seed numpy's global generator anew where it was preloaded, as Python does its own after a fork.

    Otherwise all processes would draw the same numbers; one that imports numpy itself draws others.
    """
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed()


def _forget_exit_functions() -> None:
    """Leave this process without exit functions: those so far are the supervisor's and of what it has imported.

    Before anything of the program is loaded, whose modules may register some. A ``weakref.finalize`` of an
    imported package would clean up what all processes have from it.
    """
    exits: Any = atexit
    exits._clear()  # noqa: SLF001 - as the stdlib's start methods do; there is no public way
    finalize: Any = weakref.finalize
    for inherited in list(finalize._registry):  # noqa: SLF001 - there is no public way
        inherited.atexit = False
    # with it the next one registers the function that calls them, as the first one of a process does
    finalize._registered_with_atexit = False  # noqa: SLF001 - as above
    if "logging" in sys.modules:
        # a handler may keep records until then
        atexit.register(sys.modules["logging"].shutdown)


def _call(function: Any, plan: ChildPlan) -> int:
    try:
        # from here on it runs, and may be interrupted
        os.close(plan.report)
        code = _exit_code(function(plan.private, plan.index))
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException:
        import traceback

        # what lies below the entry function is this module and of no use to a reader
        kind, value, trace = sys.exc_info()
        with contextlib.suppress(Exception):
            traceback.print_exception(kind, value, trace and trace.tb_next)
        code = 1
    # those of a main module that failed while it was loaded; otherwise they have been called
    vars(atexit)["_run_exitfuncs"]()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return code


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)  # noqa: T201 - as the interpreter does with SystemExit("text")
    return 1


class InChild(BaseException):
    """Raised in a forked child, so that nothing of the supervisor is left below its code.

    Whoever catches it closes descriptors by their numbers and keeps the supervisor's objects: there
    may be thousands, and to release one is to copy its page, which parent and child share until then.
    """

    def __init__(self, plan: ChildPlan) -> None:
        super().__init__(plan.job_id)
        self.plan = plan


@values.frozen(kw_only=True)
class Spawned:
    """Forked process as its supervisor sees it; its descriptors are owned and non-blocking."""

    #: process id, also of its group
    pid: int
    #: read end of its standard output
    stdout: int
    #: read end of its standard error
    stderr: int
    #: read end: the error that kept it from running, or end of file once it runs
    report: int
    #: its channel; None for programs
    channel: int | None


def spawn(
    plan_for: Callable[..., ChildPlan], descriptors: Descriptors, *, channel: bool
) -> Spawned:
    """Fork a process; raises :class:`InChild` in the child.

    Args:
        plan_for: makes the plan from the descriptors given by keyword.
        descriptors: owner of the supervisor's ends.
        channel: whether the child gets a channel.

    Raises:
        OSError: the system has no room for it; nothing was started.
    """
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for _ in range(3):
            reader, writer = os.pipe()
            ours.append(reader)
            theirs.append(writer)
        if channel:
            mine, its = socket.socketpair()
            mine.setblocking(False)
            its.setblocking(True)
            ours.append(mine.detach())
            theirs.append(its.detach())
        plan = plan_for(
            stdout=theirs[0],
            stderr=theirs[1],
            report=theirs[2],
            channel=theirs[3] if channel else None,
        )
        # a child that has not reset the supervisor's handlers yet would swallow these: it takes them then
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        with warnings.catch_warnings():
            # that there are threads: those of libraries in C, which start them again
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        for descriptor in ours + theirs:
            os.close(descriptor)
        raise
    if pid == 0:
        # the collector would write to each object, and so copy its page
        gc.freeze()
        for descriptor in ours:
            os.close(descriptor)
        raise InChild(plan)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    for descriptor in theirs:
        os.close(descriptor)
    for descriptor in ours:
        descriptors.own(descriptor)
        os.set_blocking(descriptor, False)
    return Spawned(
        pid=pid,
        stdout=ours[0],
        stderr=ours[1],
        report=ours[2],
        channel=ours[3] if channel else None,
    )


def forks_entries() -> bool:
    """True where jobs call entry functions in forked children; False: they execute ``argv``.

    On macOS a forked process may not use the system's frameworks.
    """
    return sys.platform != "darwin"
