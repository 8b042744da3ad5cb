"""Runtime: what a process of a run owns (settings, plugins, backend, connections), closed in order.

Also the set-up of Fiber's own log, where the user asked for one, and the public functions that ask the
current runtime.
"""

from __future__ import annotations

import contextlib
import copyreg
import itertools
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber._base.log import lazy_logger
from fiber._config.convert import is_true
from fiber._launch.router import Router
from fiber._wire import codec, fork
from fiber._wire.handshake import Credentials
from fiber.exceptions import BackendError, BackendUnavailableError, ConfigError, FiberError
from fiber.model import BackendContext, JobSpec

if TYPE_CHECKING:
    from fiber._agent.instructions import Instructions
    from fiber._base.threads import Reactor
    from fiber._config.settings import Config
    from fiber._launch.child import Child
    from fiber._launch.launcher import Launcher
    from fiber._plugins.manager import Plugins
    from fiber._wire.client import Client, ClientPool
    from fiber._wire.endpoint import Endpoint
    from fiber._wire.handshake import Hello
    from fiber._wire.link import Link
    from fiber.abc import Backend
    from fiber.model import BackendInfo, Job


log = lazy_logger()


def configure_logging(config: Config) -> None:
    """Set up the logger ``fiber`` by ``debug``, ``log_level`` and ``log_file``, if set."""
    if not config.debug and not config.is_set("log_level") and config.log_file is None:
        return
    import logging

    level = logging.DEBUG if config.debug else config.log_level.upper()
    if config.debug or config.is_set("log_level"):
        log.setLevel(level)
    if config.log_file is not None and not any(
        isinstance(handler, logging.FileHandler) for handler in log.handlers
    ):
        handler = logging.FileHandler(config.log_file, delay=True)
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(processName)s %(levelname)s %(message)s")
        )
        log.addHandler(handler)
    elif config.debug and not log.handlers:
        handler_ = logging.StreamHandler(sys.stderr)
        handler_.setFormatter(logging.Formatter("%(processName)s %(levelname)s %(message)s"))
        log.addHandler(handler_)


_lock = threading.RLock()
_current: Runtime | None = None
_arguments: dict[str, Any] = {}


def _register_tensors() -> bool:
    # by name, and only where the program uses torch: shared objects are built upon this module
    registered: bool = load_object("fiber._objects.memory.tensors:register")()
    return registered


def _register_sockets() -> bool:
    copyreg.pickle(sys.modules["socket"].socket, _reduce_socket)
    return True


def _reduce_socket(sock: Any) -> Any:
    # likewise
    return load_object("fiber._objects.descriptors:reduce_socket")(sock)


codec.register_when_imported("torch", _register_tensors)
codec.register_when_imported("socket", _register_sockets)


class brief_errors:  # noqa: N801 - used as a function
    """Errors of settings and of backends leave it without inner frames and causes.

    Their text has the platform's words and what to do, and stands alone where a user made a mistake.
    ``debug`` (``FIBER_DEBUG=1``) keeps all frames.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (BackendError, ConfigError)) and not _is_debugging():
            raise error.with_traceback(None) from None


def _is_debugging() -> bool:
    if _current is not None:
        return _current.config.debug
    # the settings may be what is wrong
    return bool(argument("debug")) or is_true(os.environ.get("FIBER_DEBUG", ""))


def current() -> Runtime:
    """This process's runtime, made on first use.

    Raises:
        ForkedError: in a process that the user forked from one that used fiber.
        ConfigError: a setting is wrong.
    """
    global _current  # noqa: PLW0603 - there is one a process
    fork.check()
    with _lock:
        if _current is None or _current.closed:
            with brief_errors():
                _current = Runtime.of_master(_arguments)
            _end_by_sigterm()
        return _current


def _end_by_sigterm() -> None:
    """Make SIGTERM end the first process of a container, as it ends any other.

    Linux gives the first process of a PID namespace no default actions: it, and all its jobs
    elsewhere, would go on until the platform's SIGKILL. A program's own handler is left alone.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def started() -> Runtime | None:
    """This process's runtime if there is one already."""
    return _current if _current is not None and not _current.closed else None


def init(**arguments: Any) -> None:
    """Set settings of this program in code, before its first process, pool or queue.

    Args:
        arguments: keys as in the configuration guide; those of a backend with its name in front.

    Raises:
        ConfigError: an unknown key or a bad value.
        FiberError: fiber is in use already, so the settings would come too late.
    """
    with _lock:
        runtime = started()
        if runtime is not None and runtime.in_use:
            msg = "fiber.init() comes too late: a process, pool or queue exists; call it before"
            raise FiberError(msg)
        if runtime is not None:
            runtime.close()
        from fiber._plugins.backend_choice import load_settings

        # checked at once, so that a mistake is reported where it was made
        load_settings(arguments)
        _arguments.clear()
        _arguments.update(arguments)


def argument(key: str) -> Any:
    """Value that :func:`init` got for a key; None where it got none."""
    return _arguments.get(key)


class Runtime:
    """Owner of everything that a process of a run has one of. Use :func:`current`."""

    def __init__(
        self,
        *,
        credentials: Credentials,
        config: Config,
        ident: str,
        directory: Path | None,
        plugins: Plugins | None = None,
        info: BackendInfo | None = None,
        parent_link: Link | None = None,
        hello: Hello | None = None,
        instructions: Instructions | None = None,
        index: int = 0,
    ) -> None:
        self.config = config
        #: durations of this run
        self.timing = config.timing
        #: instructions by which this process reached its parent; None in the master
        self.instructions = instructions
        #: identity of this process within the run
        self.ident = ident
        #: the process object that this process is; None in the master
        self.process: Any = None
        #: position among the processes of its job
        self.index = index
        #: exit code with which this process ends
        self.exit_code = 0
        self.closing = False
        self.closed = False
        self._pid = os.getpid()
        self._parent_link = parent_link
        self._credentials = credentials
        self._directory = directory
        self._plugins = plugins
        self._info = info
        self._hello = hello
        self._lock = threading.RLock()
        self._backend: Backend | None = None
        self._others: dict[str, Backend] = {}
        self._reactor: Reactor | None = None
        self._endpoint: Endpoint | None = None
        self._launcher: Launcher | None = None
        #: addresses of this process, and those it dials for others
        self.router = Router(self)
        self._clients: ClientPool | None = None
        self._parts: list[Any] = []
        #: what notes the tasks of this process's pools, those to come too; see ``_watch.trace``
        self.traces: list[Any] = []
        self._has_asked_for_trace = False
        self._finalizer: util.Finalize | None = None
        # 0 is the process itself
        self._targets = itertools.count(1)

    @classmethod
    def of_master(cls, arguments: Mapping[str, Any]) -> Runtime:
        """The runtime of the process that begins a run."""
        # workers start nothing as a rule
        from fiber._plugins.backend_choice import load_settings

        config, plugins, info = load_settings(arguments)
        runtime = cls(
            credentials=Credentials.new(),
            config=config,
            ident=os.urandom(4).hex(),
            directory=None,
            plugins=plugins,
            info=info,
        )
        configure_logging(config)
        # after the finalizers of pools and queues (priorities above), and after non-daemon
        # children were joined: the stdlib does that between positive and other priorities
        runtime._finalizer = util.Finalize(None, runtime._close_at_exit, exitpriority=-100)
        return runtime

    @classmethod
    def of_child(
        cls,
        instructions: Instructions,
        *,
        config: Config,
        parent_link: Link | None,
        hello: Hello,
        index: int,
    ) -> Runtime:
        """The runtime of a process that another one started; it becomes the current one.

        Args:
            instructions: how it reaches its parent.
            config: settings of the run.
            parent_link: the connection to its parent, where it was made already; closed with the runtime.
            hello: its identity.
            index: position among the processes of its job.
        """
        global _current  # noqa: PLW0603 - there is one a process
        runtime = cls(
            credentials=instructions.credentials,
            config=config,
            ident=hello.ident,
            directory=Path(instructions.directory),
            parent_link=parent_link,
            hello=hello,
            instructions=instructions,
            index=index,
        )
        configure_logging(config)
        _current = runtime
        return runtime

    # -- facts

    @property
    def run_id(self) -> str:
        """The run, eight hexadecimal digits."""
        return self._credentials.run_id

    @property
    def is_master(self) -> bool:
        """True in the process that began the run."""
        return self.instructions is None

    @property
    def parent_link(self) -> Link | None:
        """Connection to the process that started this one, made on first use; None in the master.

        Raises:
            StartError: the parent does not answer.
            HandshakeError: it refused this process.
        """
        if self.instructions is None:
            return None
        with self._lock:
            if self._parent_link is None:
                self._refuse_if_closed()
                from fiber._agent.instructions import dial

                self._parent_link = dial(self.instructions, self.hello)
            return self._parent_link

    @property
    def parent_url(self) -> str:
        """Address at which the process that started this one is reached; "" in the master."""
        if self._parent_link is not None:
            return self._parent_link.url
        return "" if self.instructions is None else self.instructions.urls[0]

    @property
    def parent_ident(self) -> str:
        """Identity of the process that started this one; "" for the one that began the run."""
        if self._parent_link is None and self.instructions is not None and self.instructions.parent:
            # not dialled so far
            return self.instructions.parent.ident
        return "" if self.parent_link is None else self.parent_link.peer.ident

    @property
    def in_use(self) -> bool:
        """True once anything was opened or started."""
        return self._reactor is not None or self._backend is not None

    @property
    def credentials(self) -> Credentials:
        """Secrets of the run, with its certificate where one was made."""
        endpoint = self._endpoint
        return self._credentials if endpoint is None else endpoint.credentials

    @property
    def directory(self) -> Path:
        """The folder of the run on this host."""
        with self._lock:
            if self._directory is None:
                from fiber._agent import rundir

                self._directory = rundir.create(self.run_id, self.info.name)
            return self._directory

    @property
    def plugins(self) -> Plugins:
        """The installed plugins, loaded on first use."""
        with self._lock:
            if self._plugins is None:
                from fiber._plugins.manager import load_plugins

                self._plugins = load_plugins()
            return self._plugins

    @property
    def info(self) -> BackendInfo:
        """The chosen backend as its plugin announces it."""
        with self._lock:
            if self._info is None:
                from fiber._plugins.backend_choice import choose_backend

                info = choose_backend(self.plugins, self.config, os.environ)
                self._info = info.with_settings(self.config.settings)
            return self._info

    # -- parts, made on first use

    @property
    def backend(self) -> Backend:
        """The chosen backend."""
        with self._lock:
            if self._backend is None:
                self._refuse_if_closed()
                with brief_errors():
                    self._backend = _load_backend(self)
            return self._backend

    def backend_named(self, name: str) -> Backend:
        """A backend by name: the chosen one, or another for queries, closed with the runtime.

        Raises:
            BackendError: it is unknown, not installed or cannot be loaded.
        """
        info = self.plugins.find_backend(name)
        if info.name == self.info.name:
            return self.backend
        with self._lock:
            found = self._others.get(info.name)
            if found is None:
                self._refuse_if_closed()
                from fiber._plugins.backend_choice import open_backend

                trusted = self.config.trusted_folders
                found = self._others[info.name] = open_backend(self.plugins, info, trusted)
            return found

    @property
    def hello(self) -> Hello:
        """Identity that this process sends when it connects."""
        with self._lock:
            if self._hello is None:
                from fiber._wire.handshake import Hello

                self._hello = Hello.mine(self.ident)
            return self._hello

    @property
    def reactor(self) -> Reactor:
        """Event loop of connections, on its handler thread."""
        with self._lock:
            if self._reactor is None:
                self._refuse_if_closed()
                from fiber._base.threads import Reactor

                self._reactor = Reactor()
                fork.register(self._reactor)
            return self._reactor

    @property
    def endpoint(self) -> Endpoint:
        """The listening side of this process."""
        with self._lock:
            if self._endpoint is None:
                self._refuse_if_closed()
                with brief_errors():
                    self._endpoint = self.router.open_endpoint()
            return self._endpoint

    @property
    def launcher(self) -> Launcher:
        """Starts the children of this process."""
        with self._lock:
            if self._launcher is None:
                from fiber._launch.launcher import Launcher

                self._launcher = Launcher(self)
                if self.is_master:
                    from fiber._runtime.inspection import StackFile, StatusSocket

                    # there is something to see from now on
                    self.own(
                        StatusSocket(
                            self.directory,
                            self.reactor,
                            self.timing,
                            # by name, as below, and when somebody asks
                            lambda: load_object("fiber._watch.status:Answers")(self),
                        )
                    )
                    self.own(StackFile(self.directory, self.ident))
                    if self.config.debugger:
                        # by name, as below
                        self.own(load_object("fiber._watch.debugger:DebuggerService")(self))
                    if self.config.metrics is not None:
                        # by name: what counts is built upon what runs
                        serve = load_object("fiber._watch.metrics:serve_run")
                        server = serve(self, self.config.metrics)
                        if server is not None:
                            self.own(server)
                    if self.config.dashboard is not None:
                        serve = load_object("fiber._dashboard.program:serve_run")
                        page = serve(self, self.config.dashboard)
                        if page is not None:
                            self.own(page)
            return self._launcher

    def urls(self) -> list[str]:
        """Addresses at which other processes reach this one, best first."""
        return list(self.endpoint.urls)

    def client(self, url: str) -> Client:
        """The connection for calls to another process, made on first use.

        Raises:
            TransportError: nothing listens at that address.
        """
        with self._lock:
            if self._clients is None:
                from fiber._wire.client import ClientPool

                self._clients = ClientPool(self._connect, self.router.resolve)
            clients = self._clients
        return clients.get(url)

    def _connect(self, url: str) -> Client:
        from fiber._wire.client import Client

        return Client(
            url,
            self.credentials,
            self.hello,
            self.reactor,
            max_frame=self.config.max_frame,
            timing=self.timing,
        )

    def new_target(self) -> int:
        """A number by which other processes address an object of this one."""
        return next(self._targets)

    @property
    def parts(self) -> tuple[Any, ...]:
        """Parts that :meth:`own` was given and that are not closed."""
        return tuple(self._parts)

    def started_traces(self) -> list[Any]:
        """The traces of this process's pools; one is started where the setting ``trace`` names a file."""
        path = self.config.trace
        if path is not None and self.is_master and not self._has_asked_for_trace:
            self._has_asked_for_trace = True
            # programs that a program starts have its environment, and files of their own
            path = Path(str(path).replace("%p", str(os.getpid())))
            # by name: it is built upon pools
            begin = load_object("fiber._watch.trace:Trace")
            try:
                begin(self, path)
            except OSError as error:
                msg = f"setting 'trace': {path} cannot be written: {error}"
                raise ConfigError(msg) from error
        return list(self.traces)

    def child_of(self, ident: str) -> tuple[Child, int] | None:
        """The job with a process of an identity, and its index there, if this process started it."""
        return None if self._launcher is None else self._launcher.child_of(ident)

    def children(self) -> list[Child]:
        """The jobs that this process started and that have not ended."""
        return [] if self._launcher is None else self._launcher.alive()

    def own(self, part: Any) -> None:
        """Call ``part.close()`` when the runtime closes, for the part that was added last first."""
        self._parts.append(part)

    def disown(self, part: Any) -> None:
        """Forget a part that was closed; idempotent."""
        with contextlib.suppress(ValueError):
            self._parts.remove(part)

    # -- actions

    def submit(self, spec: JobSpec) -> Job:
        """Submit a job through the hook, so that plugins may wrap it.

        Raises:
            CapabilityError: it asks for what the backend does not declare, which is not asked then.
        """
        from fiber._plugins.backend_choice import refuse_undeclared

        refuse_undeclared(self.info.name, self.info.capabilities, spec)
        job: Job = self.plugins.hook.fiber_submit_job(backend=self.backend, spec=spec)
        self.router.submitted(spec, job)
        return job

    @property
    def takes_many(self) -> bool:
        """True where the backend takes several jobs in one call.

        A plugin that wraps or answers the hook has every job come by it, so jobs are submitted one by
        one then.
        """
        from fiber.abc import Backend

        wrapped = len(self.plugins.hook.fiber_submit_job.get_hookimpls()) > 1
        return type(self.backend).submit_many is not Backend.submit_many and not wrapped

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Submit jobs in one call of a backend that takes several; see :attr:`takes_many`.

        Raises:
            CapabilityError: one asks for what the backend does not declare; none is submitted then.
        """
        from fiber._plugins.backend_choice import refuse_undeclared

        for spec in specs:
            refuse_undeclared(self.info.name, self.info.capabilities, spec)
        found = self.backend.submit_many(specs)
        if len(found) != len(specs):
            msg = f"{self.info.name} answered {len(found)} of {len(specs)} specs of submit_many"
            raise BackendError(msg)
        for spec, job in zip(specs, found, strict=True):
            if not isinstance(job, BackendError):
                self.router.submitted(spec, job)
        return found

    def notify(self, hook: str, **facts: Any) -> None:
        """Call a hook of all plugins; their errors are logged, each by itself."""
        if self._plugins is not None:
            self._plugins.notify(hook, **facts)

    def cpu_count(self) -> int:
        """CPUs that the backend has for jobs, at least 1."""
        with brief_errors():
            cpus = self.backend.capacity().cpus
        return max(1, int(cpus if cpus is not None else os.cpu_count() or 1))

    @property
    def lease(self) -> float:
        """Seconds of silence after which a job is given up."""
        return self.config.lease if self.config.lease is not None else self.info.lease

    def close(self) -> None:
        """End all children, close all connections, remove the run's folder. Idempotent."""
        if self.closing or self._pid != os.getpid():
            return
        self.closing = True
        link = self._parent_link
        first = (link, self._endpoint, self.router, self._clients, self._launcher, self._backend)
        # the last one is closed first, and an error of one does not keep the others open
        with contextlib.ExitStack() as stack:
            stack.callback(self._is_closed)
            if self._reactor is not None:
                stack.callback(self._reactor.stop)
            for part in (*first, *self._others.values(), *self._parts):
                if part is not None:
                    stack.callback(self._close, part)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except KeyboardInterrupt:
            # the other parts are closed, and a traceback through Fiber says nothing to the user
            log.warning("fiber: interrupted at the end of the program; what it left ends by itself")

    def _close(self, part: Any) -> None:
        try:
            part.close()
        except BackendError as error:
            # also a refusal, as of credentials that have expired meanwhile
            refuses = not isinstance(error, BackendUnavailableError)
            log.warning(
                "fiber: the platform %s to end what this program still runs there, "
                "which ends by itself within %g s: %s",
                "refuses" if refuses else "cannot be asked",
                self.lease,
                error,
            )

    def _is_closed(self) -> None:
        if self.is_master and self._directory is not None:
            from fiber._agent import rundir

            rundir.remove(self._directory)
        self.closed = True
        if self._finalizer is not None:
            self._finalizer.cancel()

    def _refuse_if_closed(self) -> None:
        if self.closing:
            msg = "this process is ending; nothing new can be started"
            raise FiberError(msg)


def _load_backend(runtime: Runtime) -> Backend:
    """The chosen backend of a run, loaded.

    Raises:
        BackendError: it cannot be loaded.
    """
    from fiber._plugins.backend_choice import load_backend

    context = BackendContext(
        config=runtime.config.settings,
        providers=runtime.plugins.lazy_providers(),
        run_id=runtime.run_id,
        run_directory=str(runtime.directory),
        lease=runtime.config.lease,
        timing=runtime.timing,
    )
    return load_backend(runtime.plugins, runtime.info.name, context)


def cpu_count() -> int:
    """CPUs that the selected backend has for jobs."""
    return current().cpu_count()


def get_backend(name: str | None = None) -> Backend:
    """The selected backend, as the current program uses it; or another one by name, for queries.

    Raises:
        UnknownBackendError: no plugin offers one of that name.
        BackendNotInstalledError: its distribution is not installed; the text has the command.
    """
    runtime = current()
    return runtime.backend if name is None else runtime.backend_named(name)
