"""The engine that settings, environment and contexts name; needs neither SDK nor connection."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from fiber_docker.config import DockerConfig

#: default socket of Docker, and the path at which jobs find a shared engine
SOCKET = "/var/run/docker.sock"
#: environment variable in the containers of jobs, with one of the next two values
ENGINE_VARIABLE = "_FIBER_DOCKER"
#: the job has no engine
NO_ENGINE = "alone"
#: the job has the engine's socket
SHARED_ENGINE = "shared"


def has_no_engine(environ: Mapping[str, str]) -> bool:
    """True in the container of a job without an engine."""
    return environ.get(ENGINE_VARIABLE) == NO_ENGINE


def effective_config(config: DockerConfig, environ: Mapping[str, str]) -> DockerConfig:
    """The settings as they apply to this process.

    In a job with a shared engine: the master's settings, with the engine at the mounted socket.
    """
    if environ.get(ENGINE_VARIABLE) != SHARED_ENGINE:
        return config
    return attrs.evolve(config, host=f"unix://{SOCKET}", context=None, address=None)


def is_visible(config: DockerConfig, environ: Mapping[str, str]) -> bool:
    """True where a setting, a variable, a context or a socket names an engine."""
    return (
        names_an_engine(config, environ)
        or has_default_socket()
        or podman_socket(environ) is not None
    )


def podman_socket(environ: Mapping[str, str]) -> str | None:
    """Podman's socket, of this user or of the system; None where there is none."""
    runtime = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in (Path(runtime, "podman", "podman.sock"), Path("/run/podman/podman.sock")):
        try:
            if path.is_socket():
                return f"unix://{path}"
        except PermissionError:
            continue
    return None


def has_default_socket() -> bool:
    """True where Docker's default socket exists."""
    return Path(SOCKET).exists()


def names_an_engine(config: DockerConfig, environ: Mapping[str, str]) -> bool:
    """True where a setting, a variable or a context names an engine; sockets do not count."""
    return bool(
        config.host
        or config.context
        or environ.get("DOCKER_HOST")
        or environ.get("DOCKER_CONTEXT")
        or _current_context(environ) != "default"
    )


def _current_context(environ: Mapping[str, str]) -> str:
    folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME", "/"), ".docker"))
    try:
        found = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # no file, or one that the SDK will complain about in its own words
        return "default"
    return str(found.get("currentContext") or "default") if isinstance(found, dict) else "default"
