"""Public functions ``fiber.cpu_count`` and ``fiber.get_backend``, which ask the current runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._runtime import runtime

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["cpu_count", "get_backend"]


def cpu_count() -> int:
    """CPUs that the selected backend has for jobs."""
    return runtime.current().cpu_count()


def get_backend(name: str | None = None) -> Backend:
    """The selected backend, as the current program uses it; or another one by name, for queries.

    Raises:
        UnknownBackendError: no plugin offers one of that name.
        BackendNotInstalledError: its distribution is not installed; the text has the command.
    """
    current = runtime.current()
    return current.backend if name is None else current.backend_named(name)
