"""What a command works with: the settings, the plugins, and the backend that was chosen."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fiber._config.settings import Config, load_config
from fiber._config.sources import Origin, OriginKind
from fiber._plugins.backend_choice import choose_backend, load_backend
from fiber.cli.options import loaded_plugins, options_given
from fiber.exceptions import CapabilityError, FiberError
from fiber.model import BackendContext, BackendInfo, Job, JobSpec

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber.abc import Backend

__all__ = ["Run", "Session"]


@attrs.define(kw_only=True)
class Run:
    """A run that a command began, with its backend."""

    #: eight hexadecimal digits
    id: str
    #: the backend, closed when the command leaves the run
    backend: Backend
    #: whether its jobs go on when the command leaves it without an error
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
    ) -> Session:
        """Read the settings and choose the backend.

        Args:
            backend: what ``--backend`` says.
            options: settings that other options of the command set; None is not set.
            plugins: the plugins, loaded if omitted.
            settings: the backend's own, with which a run was begun; the command's options if omitted.

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
            info = plugins.find_backend(backend, origin="option --backend")
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
        return cls(config=config, plugins=plugins, info=info)

    def require(self, capability: str, what: str) -> None:
        """Refuse early what the backend does not do.

        Args:
            capability: a field of :class:`~fiber.model.Capabilities`.
            what: what was asked for, for the message.

        Raises:
            CapabilityError: the backend does not declare it.
        """
        if not getattr(self.info.capabilities, capability):
            raise CapabilityError(self.info.name, capability, what)

    @contextlib.contextmanager
    def look(self) -> Iterator[Backend]:
        """The backend, to look at jobs and end them; it is in no run."""
        backend = self._load(None, None)
        with contextlib.closing(backend):
            yield backend

    @contextlib.contextmanager
    def begin_run(self, *, detached: bool = False) -> Iterator[Run]:
        """The backend in a new run; nothing is left of it afterwards.

        A detached run stays when the block ends without an error, unless the block says otherwise,
        to be collected later.
        """
        from fiber._agent import rundir

        run_id = secrets.token_hex(4)
        settings = self.config.own_settings()
        directory = rundir.create(run_id, self.info.name, detached=detached, settings=settings)
        keep = False
        try:
            backend = self._load(run_id, str(directory))
            with contextlib.closing(backend):
                run = Run(id=run_id, backend=backend, stays=detached)
                try:
                    yield run
                except BaseException:
                    # what ended the block is told, and nothing that follows from it
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
        """Submit a job through the hook, so that plugins may wrap it."""
        job: Job = self.plugins.hook.fiber_submit_job(backend=backend, spec=spec)
        return job

    def _load(self, run_id: str | None, directory: str | None) -> Backend:
        context = BackendContext(
            config=self.config.settings,
            providers=self.plugins.providers(),
            run_id=run_id,
            run_directory=directory,
            lease=self.config.lease,
            image=self.config.image,
        )
        return load_backend(self.plugins, self.info.name, context)
