"""What the engine refused to start, and what to do about it; pure."""

from __future__ import annotations

from fiber.exceptions import BackendError
from fiber.model import JobSpec
from fiber_docker.config import DockerConfig

__all__ = ["advice", "lacks_python"]

_NO_PYTHON = ("executable file not found", "no such file or directory")


def lacks_python(error: BackendError) -> bool:
    """True where an image has no program of the name that was to be started."""
    return any(words in str(error) for words in _NO_PYTHON)


def advice(error: BackendError, spec: JobSpec, config: DockerConfig, image: str) -> str:
    """The engine's words, with what to do where they say that there is no Python."""
    needs_python = spec.entry is not None or spec.private is not None
    if needs_python and lacks_python(error):
        return (
            f"image {image} has no Python called {config.python!r}: {error}; name an image with "
            f"Python and fiber (FIBER_IMAGE), or set FIBER_DOCKER_PYTHON to its path there"
        )
    return str(error)
