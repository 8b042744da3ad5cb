"""Config, the settings of a run, and ``load_config``, which makes it of all sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fiber._base import values
from fiber._config.convert import (
    SettingsCollector,
    build,
    convert,
    key_prefix,
    parse_cpu,
    parse_memory,
    render,
    settings_of,
)
from fiber._config.sources import FileSettings, Origin, OriginKind, RawValue, read_file
from fiber.exceptions import ConfigError
from fiber.model import BackendInfo
from fiber.model.timing import Timing

__all__ = ["Config", "Origin", "OriginKind", "Setting", "load_config"]

_DEFAULT = Origin(OriginKind.DEFAULT)

_positive: Any = values.gt(0)

_INTERNAL = {"internal": True}
_TRUSTED = "trusted_folders"


def _metadata(text: str, parse: Any = None) -> dict[str, Any]:
    return {"help": text} if parse is None else {"help": text, "parse": parse}


def _optional(parse: Any, value: Any) -> Any:
    return None if isinstance(value, str) and value.lower() in {"", "none"} else parse(value)


#: where a dashboard is served where nobody says so
DASHBOARD = "127.0.0.1:8237"


def _dashboard(value: Any) -> str | None:
    try:
        return DASHBOARD if convert(value, bool) else None
    except ValueError:
        pass
    address = _optional(str, value)
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        msg = f"true, false, or HOST:PORT such as {DASHBOARD}"
        raise ValueError(msg)
    return str(address)


@values.frozen
class Setting:
    """A setting with its value and origin: a line of ``fiber config``."""

    #: the key as ``fiber.init`` takes it
    key: str
    #: its value, or a row of stars for a secret that is set
    value: Any
    #: where it was set
    origin: Origin
    #: one line for people
    help: str = ""


@values.frozen(kw_only=True)
class Config:
    """The settings of a run: the core's own, and in ``settings`` those of the chosen backend."""

    #: name of the backend, or None: the one that is detected, else the default
    backend: str | None = values.field(default=None, metadata=_metadata("name of the backend"))
    #: image of jobs, where the backend runs images
    image: str | None = values.field(default=None, metadata=_metadata("image that jobs run in"))
    #: least severe level that is logged
    log_level: Literal["debug", "info", "warning", "error", "critical"] = values.field(
        default="warning", metadata=_metadata("least severe level that is logged")
    )
    #: file that fiber's own log goes to, or None: stderr
    log_file: Path | None = values.field(
        default=None, metadata=_metadata("file of fiber's own log; stderr without one")
    )
    #: True to log everything, whatever ``log_level`` says
    debug: bool = values.field(default=False, metadata=_metadata("log everything"))
    #: CPUs of a job that asks for none itself
    cpu: float | None = values.field(
        default=None, metadata=_metadata("CPUs of each job", partial(_optional, parse_cpu))
    )
    #: MB (2**20 bytes) of a job that asks for none itself
    memory: int | None = values.field(
        default=None,
        metadata=_metadata("memory of each job in MB", partial(_optional, parse_memory)),
    )
    #: names of environment variables that remote jobs get besides the usual ones
    env: tuple[str, ...] = values.field(
        default=(), metadata=_metadata("variables passed on to remote jobs")
    )
    #: True to put the job's name before each line of its output on the parent's terminal
    log_prefix: bool = values.field(
        default=False, metadata=_metadata("prefix lines of output with the job's name")
    )
    #: seconds that a job may take from accepted to its hello
    start_timeout: float = values.field(
        default=60.0, metadata=_metadata("seconds until a job must be up"), validator=_positive
    )
    #: seconds of silence after which a job is given up; None: the backend's own
    lease: float | None = values.field(
        default=None,
        metadata=_metadata("seconds of silence until a job is given up"),
        validator=values.optional(_positive),
    )
    #: most bytes in one frame on the wire
    max_frame: int = values.field(
        default=4 * 2**20,
        metadata=_metadata("most bytes in one frame on the wire"),
        validator=values.and_(values.ge(2**16), values.le(2**30)),
    )
    #: deaths of its worker after which a task is given up
    max_attempts: int = values.field(
        default=3,
        metadata=_metadata("worker deaths until a task is given up"),
        validator=values.ge(1),
    )
    #: ``HOST:PORT`` at which the program serves metrics for Prometheus, or None
    metrics: str | None = values.field(
        default=None, metadata=_metadata("address at which the program serves metrics")
    )
    #: ``HOST:PORT`` at which the program serves its dashboard, or None
    dashboard: str | None = values.field(
        default=None,
        metadata=_metadata("serve a page on which to see the run; or its address", _dashboard),
    )
    #: True to keep functions and arguments of tasks that failed
    keep_failed: bool = values.field(
        default=False, metadata=_metadata("keep failed tasks, for fiber replay")
    )
    #: True to have breakpoint() in a child open a prompt on the program's terminal
    debugger: bool = values.field(
        default=False, metadata=_metadata("breakpoint() in workers opens a prompt here")
    )
    #: True to have each task in a span of OpenTelemetry
    otel: bool = values.field(
        default=False, metadata=_metadata("a span of OpenTelemetry for each task")
    )
    #: file that a timeline of the program's pools is written to, or None
    trace: Path | None = values.field(
        default=None,
        metadata={**_metadata("file for a timeline of the pools"), "passed_on": False},
    )
    #: seconds of waiting work and no idle worker after which an elastic pool grows
    grow_after: float = values.field(
        default=1.0, metadata=_metadata("seconds until an elastic pool grows"), validator=_positive
    )
    #: seconds of idleness after which an elastic pool lets a worker go
    shrink_after: float = values.field(
        default=30.0, metadata=_metadata("seconds until an idle worker goes"), validator=_positive
    )
    #: seconds that an ending process waits for readers of what is in its queues and pipes
    linger: float = values.field(
        default=10.0,
        metadata=_metadata("seconds that an ending process waits for its readers"),
        validator=values.ge(0),
    )
    #: False to have pipes, locks and events work by messages between processes of one host, too
    kernel_objects: bool = values.field(
        default=True,
        metadata=_metadata("use the kernel's sockets and memory between processes of one host"),
    )
    #: factor of all durations that are no settings, see ``timing``; for tests of what takes long
    time_scale: float = values.field(
        default=1.0,
        metadata=_metadata("factor of Fiber's own heartbeats, patience and pauses"),
        validator=_positive,
    )
    #: folders in which, and below which, the configuration file is read whoever wrote it
    trusted_folders: tuple[Path, ...] = values.field(
        default=(),
        metadata={
            **_metadata("folders whose configuration file is read whoever wrote it"),
            "passed_on": False,
        },
    )
    #: settings of the chosen backend: an instance of its ``BackendInfo.config``, or None
    settings: Any = values.field(default=None, metadata=_INTERNAL, repr=False)
    #: canonical name of the backend that ``settings`` belong to
    backend_name: str | None = values.field(default=None, metadata=_INTERNAL, repr=False)
    #: where values were set, by key; keys of the backend have its prefix
    origins: Mapping[str, Origin] = values.field(
        factory=dict, metadata=_INTERNAL, repr=False, eq=False
    )

    @property
    def timing(self) -> Timing:
        """Durations of this run."""
        return Timing.at(self.time_scale)

    def origin(self, key: str) -> Origin:
        """Return the origin of a key; keys of the backend have its prefix."""
        return self.origins.get(key, _DEFAULT)

    def is_set(self, key: str) -> bool:
        """True where a key has another origin than its default."""
        return self.origin(key) != _DEFAULT

    def explain(self) -> list[Setting]:
        """List all settings with their values and origins, secrets hidden."""
        found = []
        for prefix, owner in self._owners():
            for key, attribute in settings_of(type(owner)).items():
                value = getattr(owner, attribute.name)
                if attribute.metadata.get("secret") and value:
                    value = "********"
                text = str(attribute.metadata.get("help", ""))
                found.append(Setting(prefix + key, value, self.origin(prefix + key), text))
        return found

    def to_environ(self) -> dict[str, str]:
        """Return explicitly set values as variables for a job, which has no file or arguments.

        Left out are defaults, secrets (a job's environment can be read by others), and settings
        that hold on this host alone, which have the metadata ``{"passed_on": False}``.
        """
        return {
            f"FIBER_{key}".upper(): text
            for prefix, owner in self._owners()
            for key, attribute, text in self._explicit(prefix, owner)
            if attribute.metadata.get("passed_on", True)
        }

    def backend_settings(self) -> dict[str, str]:
        """Return the backend's explicitly set values as arguments of ``load_config``; no secrets."""
        return {
            key: text
            for prefix, owner in self._owners()[1:]
            for key, _, text in self._explicit(prefix, owner)
        }

    def _explicit(self, prefix: str, owner: Any) -> Iterator[tuple[str, Any, str]]:
        """Yield key, field and text of explicitly set values that are no secrets."""
        for key, attribute in settings_of(type(owner)).items():
            value = getattr(owner, attribute.name)
            is_set = value is not None and self.is_set(prefix + key)
            if is_set and not attribute.metadata.get("secret"):
                yield prefix + key, attribute, render(value)

    def _owners(self) -> list[tuple[str, Any]]:
        owners: list[tuple[str, Any]] = [("", self)]
        if self.settings is not None and self.backend_name is not None:
            owners.append((key_prefix(self.backend_name), self.settings))
        return owners


def load_config(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    directory: str | Path | None = None,
    backend_info: BackendInfo | None = None,
    *,
    backends: Iterable[BackendInfo] = (),
    file: FileSettings | None = None,
) -> Config:
    """Make the settings: arguments over environment over file.

    Called twice by a runtime: first without ``backend_info`` for the core's settings, by which the
    backend is chosen; then with it for the backend's own. Unknown keys are only reported then.

    Args:
        arguments: keyword arguments of ``fiber.init``; a value of None is not set.
        environ: the environment, by default this process's; an empty variable is not set.
        directory: where the configuration file is looked for, by default the working directory.
        backend_info: the chosen backend.
        backends: all installed backends; keys of those not in use are checked in arguments and
            file, and ignored in the environment.
        file: the configuration file, where it was read already.

    Raises:
        ConfigError: an unknown key in arguments or file, a bad value anywhere, or a file that
            other users can have written.
    """
    environ = os.environ if environ is None else environ
    collector = SettingsCollector(settings_of(Config), backends, backend_info)
    collector.add_file(file or find_file(arguments, environ, directory))
    _require_elsewhere(collector.by_owner[""].get(_TRUSTED))
    collector.add_environ(environ)
    collector.add_arguments(arguments)
    core = collector.by_owner.pop("")
    given = build(Config, core)
    origins = {key: raw.origin for key, raw in core.items()}
    if backend_info is None:
        return Config(**given, origins=origins)
    classes = {info.name: info.config for info in (*backends, backend_info)}
    settings = None
    for name, raws in collector.by_owner.items():
        cls, prefix = classes[name], key_prefix(name)
        if cls is not None:
            chosen = name == backend_info.name
            arguments_of = build(cls, raws, prefix, complete=chosen)
            if chosen:
                settings = cls(**arguments_of)
                origins |= {prefix + key: raw.origin for key, raw in raws.items()}
    return Config(**given, settings=settings, backend_name=backend_info.name, origins=origins)


def find_file(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    directory: str | Path | None = None,
) -> FileSettings:
    """Read the configuration file for :func:`load_config`, with the same arguments."""
    trusted = _trusted_folders(arguments, os.environ if environ is None else environ)
    try:
        return read_file(Path.cwd() if directory is None else directory, trusted)
    except (FileNotFoundError, PermissionError):
        # the working directory was removed, or this user may not enter it, as after sudo -u
        return FileSettings()


def _trusted_folders(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that are trusted by argument or environment, before the file is read."""
    given = arguments.get(_TRUSTED)
    written = environ.get(f"FIBER_{_TRUSTED}".upper(), "") if given is None else given
    try:
        found: tuple[Path, ...] = convert(written, tuple[Path, ...])
    except ValueError:
        # reported with its origin when all settings are converted
        return ()
    return found


def _require_elsewhere(raw: RawValue | None) -> None:
    if raw is not None:
        msg = (
            f"{_TRUSTED} ({raw.origin}) is not taken from a file, which cannot vouch for itself; "
            "set FIBER_TRUSTED_FOLDERS or the argument of fiber.init"
        )
        raise ConfigError(msg)
