"""Session of a command: settings, plugins, the chosen backend, and runs that it begins; what happens meanwhile.

:class:`Watcher` is a queue of events of jobs, signals to this process and answers on the terminal;
:class:`Question` asks there without blocking it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber._base.threads import ending_signals, next_item
from fiber._config.settings import Config, load_config
from fiber._config.sources import Origin, OriginKind
from fiber._plugins.backend_choice import choose_backend, load_backend, refuse_undeclared
from fiber.cli.options import loaded_plugins, options_given
from fiber.cli.output import Interrupted, note
from fiber.exceptions import BackendUnavailableError, CapabilityError, FiberError
from fiber.model import BackendContext, BackendInfo, Job, JobSpec

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber.abc import Backend
    from fiber.model import JobStatus


@attrs.define(kw_only=True)
class Run:
    """Run begun by a command, with its backend."""

    #: eight hexadecimal digits
    id: str
    #: the backend, closed when the command leaves the run
    backend: Backend
    #: True where its jobs go on when the block ends without an error
    stays: bool


@attrs.frozen(kw_only=True)
class Session:
    """The settings, the plugins and the chosen backend of one command."""

    config: Config
    plugins: Plugins
    info: BackendInfo

    @classmethod
    def load(
        cls,
        backend: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        plugins: Plugins | None = None,
        settings: Mapping[str, str] | None = None,
        origin: str = "option --backend",
    ) -> Session:
        """Read the settings and choose the backend.

        Args:
            backend: value of ``--backend``, or what ``origin`` says.
            options: settings from other options of the command; None is not set.
            plugins: the plugins, loaded if omitted.
            settings: the backend's settings that a run was begun with; by default from the
                command's options.
            origin: where the backend was named, for the message about one that is not there.

        Raises:
            ConfigError: a setting is wrong.
            BackendError: no backend can be chosen, or the one named cannot be used.
        """
        plugins = loaded_plugins() if plugins is None else plugins
        installed = tuple(plugins.backends().values())
        given = {key: value for key, value in (options or {}).items() if value is not None}
        if backend is None:
            core = load_config(given, backends=installed)
            info = choose_backend(plugins, core, os.environ)
        else:
            info = plugins.find_backend(backend, origin=origin)
            given["backend"] = info.name
        flags = {key: f"--{key}" for key in given}
        if settings is None:
            for key, (flag, value) in options_given(info).items():
                given[key], flags[key] = value, flag
        else:
            given.update(settings)
        config = load_config(given, backend_info=info, backends=installed)
        origins = {key: Origin(OriginKind.OPTION, flag) for key, flag in flags.items()}
        config = attrs.evolve(config, origins={**config.origins, **origins})
        return cls(config=config, plugins=plugins, info=info.with_settings(config.settings))

    def require(self, capability: str, what: str) -> None:
        """Raise CapabilityError where the backend does not declare a capability.

        Args:
            capability: a field of :class:`~fiber.model.Capabilities`.
            what: the operation or option that needs it, for the message.

        Raises:
            CapabilityError: the backend does not declare it.
        """
        if not getattr(self.info.capabilities, capability):
            raise CapabilityError(self.info.name, capability, what)

    def require_given(self, **given: str) -> None:
        """Raise CapabilityError for the first capability that is needed and not declared.

        Args:
            given: by capability, what needs it; "" where nothing does.
        """
        for capability, what in given.items():
            if what:
                self.require(capability, what)

    def note_unenforced(self, *, cpu: float | None, memory: int | None) -> None:
        """Report which of the given options this backend does not enforce."""
        can = self.info.capabilities
        for what, given, is_limit in (
            ("cpu", cpu, can.cpu_limit),
            ("memory", memory, can.memory_limit),
        ):
            if given is not None and not is_limit:
                note(f"{self.info.name} does not enforce {what}: a job may use more")

    @contextlib.contextmanager
    def open_backend(self) -> Iterator[Backend]:
        """Open the backend outside of any run, to list, inspect and end jobs."""
        backend = self._load(None, None)
        with contextlib.closing(backend):
            yield backend

    @contextlib.contextmanager
    def begin_run(self, *, detached: bool = False) -> Iterator[Run]:
        """Begin a run; it is removed when the block ends.

        A detached run stays when the block ends without an error, unless the block sets
        ``stays`` to False; ``fiber gc`` removes it later.
        """
        from fiber._agent import rundir

        run_id = secrets.token_hex(4)
        settings = self.config.backend_settings()
        directory = rundir.create(run_id, self.info.name, detached=detached, settings=settings)
        keep = False
        try:
            backend = self._load(run_id, str(directory))
            with contextlib.closing(backend):
                run = Run(id=run_id, backend=backend, stays=detached)
                try:
                    yield run
                except BaseException:
                    # report the first error only
                    with contextlib.suppress(FiberError):
                        backend.cleanup(run_id)
                    raise
                keep = run.stays
                if not keep:
                    backend.cleanup(run_id)
        finally:
            if not keep:
                rundir.remove(directory)

    def submit(self, backend: Backend, spec: JobSpec) -> Job:
        """Submit a job through the hook, so that plugins may wrap it.

        Raises:
            CapabilityError: it asks for what the backend does not declare, which is not asked then.
        """
        refuse_undeclared(self.info.name, self.info.capabilities, spec)
        job: Job = self.plugins.hook.fiber_submit_job(backend=backend, spec=spec)
        return job

    def _load(self, run_id: str | None, directory: str | None) -> Backend:
        context = BackendContext(
            config=self.config.settings,
            providers=self.plugins.lazy_providers(),
            run_id=run_id,
            run_directory=directory,
            lease=self.config.lease,
            timing=self.config.timing,
            image=self.config.image,
        )
        return load_backend(self.plugins, self.info.name, context)


@contextlib.contextmanager
def begun_program(session: Session, **settings: Any) -> Iterator[None]:
    """Be a program that uses Fiber with the session's backend in the ``with`` block."""
    import fiber
    from fiber._runtime import runtime

    fiber.init(backend=session.info.name, **settings)
    try:
        yield
    finally:
        runtime.current().close()


class Watcher:
    """Queue of the events of runs; its threads, one per run, end when the backend is closed."""

    def __init__(self, backend: Backend, *run_ids: str) -> None:
        self._backend = backend
        self._queues_signals = False
        self._grace = 0.0
        #: True once there was a Ctrl-C that waits for queue_signals()
        self._is_interrupted = False
        # put() may be called by a signal handler, in the middle of get()
        self._queue: queue.SimpleQueue[tuple[Job, JobStatus] | Exception | int | str] = (
            queue.SimpleQueue()
        )
        for run_id in run_ids:
            name = f"fiber-watch-{run_id}"
            threading.Thread(target=self._read, args=(run_id,), name=name, daemon=True).start()

    def get(self, *, until: float | None = None) -> tuple[Job, JobStatus] | int | str | None:
        """Wait for the next event: a job with its status, the number of a signal, or an answer.

        None after ``until`` on the monotonic clock.

        Raises:
            Exception: raised by the backend's event stream.
        """
        item = next_item(self._queue, until)
        if isinstance(item, Exception):
            raise item
        return item

    def answer(self, text: str) -> None:
        """Queue the answer to a question; may be called on any thread."""
        self._queue.put(text)

    @contextlib.contextmanager
    def signals(self, grace: float = 0.0) -> Iterator[None]:
        """Handle signals that end this process in the ``with`` block: they raise Interrupted.

        After :meth:`queue_signals` they are events instead.

        Args:
            grace: seconds for which the first Ctrl-C waits for :meth:`queue_signals`: a job may
                run, and have written to the terminal, before its submission has returned.
        """
        self._grace = grace
        before = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            with ending_signals(self._on_signal):
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def queue_signals(self) -> None:
        """Make signals events from now on, since there is a job to end first."""
        self._queues_signals = True
        if self._is_interrupted:
            self._queue.put(signal.SIGINT)

    def _on_signal(self, number: int) -> None:
        if self._queues_signals:
            self._queue.put(number)
        elif number == signal.SIGINT and self._grace and not self._is_interrupted:
            self._is_interrupted = True
            signal.setitimer(signal.ITIMER_REAL, self._grace)
        else:
            raise Interrupted(number)

    def _on_alarm(self, *_: object) -> None:
        if not self._queues_signals:
            raise Interrupted(signal.SIGINT)

    def _read(self, run_id: str) -> None:
        try:
            for event in self._backend.events(run_id):
                self._queue.put(event)
        except Exception as error:
            self._queue.put(error)
        else:
            # not read where the backend was closed on purpose
            self._queue.put(BackendUnavailableError(f"the events of run {run_id} have ended"))


_MAX_ANSWER = 1024


def can_ask() -> bool:
    """Return True where the command runs on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Question:
    """Question on the terminal, answered on a thread; a context manager that stops reading.

    Args:
        on_answer: called with the answer on a thread of its own: the line typed, stripped and in
            lower case; "" at the end of the input.
    """

    def __init__(self, on_answer: Callable[[str], None]) -> None:
        self._on_answer = on_answer
        self._wake_read, self._wake_write = os.pipe()
        self._thread: threading.Thread | None = None
        #: True while waiting for an answer
        self.is_open = False

    def ask(self, text: str) -> None:
        """Print a question and return at once; an open question is printed again."""
        click.echo(text, nl=False, err=True)
        if not self.is_open:
            self.is_open = True
            self._thread = threading.Thread(
                target=self._read_answer,
                args=(sys.stdin.fileno(),),
                name="fiber-question",
                daemon=True,
            )
            self._thread.start()

    def __enter__(self) -> Question:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_open:
            # end the line of the question
            click.echo(err=True)
        os.close(self._wake_write)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_read)

    def _read_answer(self, terminal: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            selector.register(terminal, selectors.EVENT_READ)
            if any(key.fd == self._wake_read for key, _ in selector.select()):
                return
        answer = os.read(terminal, _MAX_ANSWER).decode("utf-8", "replace").strip().lower()
        # before anybody hears of it: Ctrl-C after an answer is another question, and no "yes"
        self.is_open = False
        self._on_answer(answer)
