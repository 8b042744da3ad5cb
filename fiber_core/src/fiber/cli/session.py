"""Session of a command: settings, plugins, the chosen backend, and runs that it begins."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fiber._config.settings import Config, load_config
from fiber._config.sources import Origin, OriginKind
from fiber._plugins.backend_choice import choose_backend, load_backend, refuse_undeclared
from fiber.cli.options import loaded_plugins, options_given
from fiber.cli.output import note
from fiber.exceptions import CapabilityError, FiberError
from fiber.model import BackendContext, BackendInfo, Job, JobSpec

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber.abc import Backend


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
