"""Output of commands (tables for people, tabs for programs, JSON on request), and look-up of jobs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fiber.exceptions import FiberError, UnknownJobError

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import Job, JobStatus

__all__ = ["Listed", "age", "as_json", "find_job", "list_jobs", "span", "table"]

#: most candidates named in an error
_MOST = 10


@attrs.frozen
class Listed:
    """A job with its status at the time it was listed."""

    #: the job
    job: Job
    #: its status
    status: JobStatus


def list_jobs(backend: Backend, run_id: str | None = None) -> list[Listed]:
    """List the jobs that exist with their statuses, oldest first."""
    found = backend.list(run_id)
    try:
        statuses = backend.status(found)
        listed = [Listed(job, status) for job, status in zip(found, statuses, strict=True)]
    except UnknownJobError:
        # one was removed meanwhile: ask for each
        listed = [item for job in found for item in _ask(backend, job)]
    return sorted(listed, key=lambda item: (item.job.submitted or 0.0, item.job.id))


def _ask(backend: Backend, job: Job) -> Iterable[Listed]:
    try:
        yield Listed(job, backend.status([job])[0])
    except UnknownJobError:
        return


def find_job(jobs: Sequence[Job], word: str) -> Job:
    """Find a job by its id, else the beginning of its id, else its name.

    Raises:
        UnknownJobError: no job matches.
        FiberError: several match.
    """
    for fits in (
        [job for job in jobs if job.id == word],
        [job for job in jobs if job.id.startswith(word)],
        [job for job in jobs if job.name == word],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            names = ", ".join(f"{job.id} ({job.name})" for job in fits[:_MOST])
            more = f" and {len(fits) - _MOST} more" if len(fits) > _MOST else ""
            msg = f"{word!r} may mean {len(fits)} jobs: {names}{more}; give more of the id"
            raise FiberError(msg)
    msg = f"no job is {word!r}; 'fiber ps -a' lists those there are"
    raise UnknownJobError(msg)


_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


#: characters of a column that is not wrapped on a terminal
_NARROW = 20


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print rows: aligned on a terminal, else separated by tabs, without colours.

    Args:
        headers: one word a column, in capitals.
        rows: the cells.
        styles: rich style of a cell by its first word, for terminals.
    """
    plain = [[_CONTROL.sub(" ", cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, plain, styles or {})
        return
    for row in (headers, *plain):
        print("\t".join(row))


def _print_rich(
    headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for header, *cells in zip(headers, *rows, strict=True):
        # wide columns give way, on more lines; ids, states and ages stay whole
        is_narrow = max(map(len, (header, *cells))) <= _NARROW
        shown.add_column(header, no_wrap=is_narrow, overflow="fold")
    for row in rows:
        # Text, so that brackets in cells are not read as markup
        shown.add_row(*(Text(cell, style=styles.get(cell.partition(" ")[0], "")) for cell in row))
    Console(highlight=False).print(shown)


def as_json(value: Any) -> None:
    """Print a value of lists, dictionaries, texts and numbers as JSON."""
    print(json.dumps(value, indent=2, default=str))


def span(seconds: float) -> str:
    """Format the length of a task: ``20 µs``, ``463 ms``, ``58 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def age(seconds: float) -> str:
    """Format a time span in its largest whole unit: ``45s``, ``3m``, ``2h``, ``9d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"
