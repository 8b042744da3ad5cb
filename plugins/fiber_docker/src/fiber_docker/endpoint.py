"""Which engine is meant, found without the SDK and without asking it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from fiber_docker.config import DockerConfig

__all__ = [
    "ALONE",
    "MARK",
    "SHARED",
    "SOCKET",
    "as_seen_here",
    "has_default_socket",
    "is_alone",
    "is_visible",
    "names_an_engine",
    "podman_socket",
]

#: where an engine listens that was installed as usual, and where jobs find one that is shared
SOCKET = "/var/run/docker.sock"
#: set in the containers of jobs to one of the next two
MARK = "_FIBER_DOCKER"
#: it was given no engine
ALONE = "alone"
#: it was given the engine's socket
SHARED = "shared"


def is_alone(environ: Mapping[str, str]) -> bool:
    """True in the container of a job that was given no engine."""
    return environ.get(MARK) == ALONE


def as_seen_here(config: DockerConfig, environ: Mapping[str, str]) -> DockerConfig:
    """The settings as they hold in this process: a job has its master's, and another place."""
    if environ.get(MARK) != SHARED:
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
    """True where Docker's own socket is."""
    return Path(SOCKET).exists()


def names_an_engine(config: DockerConfig, environ: Mapping[str, str]) -> bool:
    """True where a setting, a variable or a context names an engine, so that none is looked for."""
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
