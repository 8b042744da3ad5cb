"""Which engine is meant, found without the SDK and without asking it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fiber_docker.config import DockerConfig

__all__ = ["has_default_socket", "is_visible", "names_an_engine", "podman_socket"]

_SOCKET = "/var/run/docker.sock"


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
    return Path(_SOCKET).exists()


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
