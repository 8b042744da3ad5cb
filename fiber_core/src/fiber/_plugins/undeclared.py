"""Refusal of jobs that ask for what their backend does not declare, before it is asked.

Requests for CPUs and memory are never refused: a backend that does not declare them as limits need not
enforce them.
"""

from __future__ import annotations

from collections.abc import Iterator

from fiber.exceptions import CapabilityError
from fiber.model import Capabilities, JobSpec

__all__ = ["refuse_undeclared"]


def refuse_undeclared(backend: str, declared: Capabilities, spec: JobSpec) -> None:
    """Refuse a job for the first thing in its spec that the backend does not declare.

    Args:
        backend: name of the backend.
        declared: its capabilities.
        spec: the job, as the backend would get it.

    Raises:
        CapabilityError: there is such a thing.
    """
    for capability, what in _needs(spec):
        if not getattr(declared, capability):
            raise CapabilityError(backend, capability, what)


def _needs(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the capabilities that a job needs, each with the words for what needs it."""
    if spec.image is not None:
        yield "images", f"image {spec.image!r}"
    for volume in spec.volumes:
        yield "volumes", f"volume {volume.source!r}"
    if spec.resources.devices:
        yield "devices", f"a job with devices ({', '.join(sorted(spec.resources.devices))})"
    if spec.processes > 1:
        yield "fork", f"a job of {spec.processes} processes"
    if spec.detached:
        yield "detached", f"{spec.name!r}, a job that goes on by itself,"
