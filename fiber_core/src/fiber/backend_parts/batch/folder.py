"""Folder of a run on a file system that the nodes of a batch system see.

============= ===========================================================================
``owner``     the program that submits; see :class:`~fiber.backend_parts.liveness.Claim`
``alive``     a number that the program renews, for observers on other hosts
``node.py``   the program that runs a job on its node, and ``first.py``, which it imports
``jobs/``     a file a job: program, environment and directory
``private/``  private bytes, a file a job, 0600, removed by whoever reads it
``logs/``     what jobs wrote, a file a job
``marks/``    ``KEY.started`` and ``KEY.ended``, each written elsewhere and renamed
``submitted`` a line for each job that the platform accepted, with its id
============= ===========================================================================

All folders are 0700. Nothing here asks the platform.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fiber._base import values
from fiber._base.interpreter import working_folder
from fiber.backend_parts import first
from fiber.backend_parts.batch import node
from fiber.backend_parts.liveness import Claim, Liveness, liveness_of, remove_claimed
from fiber.exceptions import BackendError
from fiber.model import JobSpec, Reason, ReasonKind

__all__ = ["Ended", "Mark", "RunFolder", "Submitted"]

_FOLDERS = ("jobs", "logs", "marks", "private")


@values.frozen
class Ended:
    """End of a program, as it was seen on its node."""

    #: exit code, or minus the number of the signal
    code: int
    #: ``EXIT``, ``SIGNAL`` or ``START``
    reason: Reason
    #: why it could not be started
    message: str = ""


@values.frozen(kw_only=True)
class Mark:
    """Marks of one job: that its program runs, and how it ended; each may be None."""

    #: host that runs it, None before the start
    host: str | None = None
    #: id of its process there
    pid: int | None = None
    #: port of the node's loopback where it takes streams; None where it takes none
    port: int | None = None
    #: its end
    ended: Ended | None = None


@values.frozen(kw_only=True)
class Submitted:
    """Job that the platform accepted."""

    #: the platform's id
    id: str
    #: its key in the run's folder
    key: str
    #: its name for people
    name: str
    #: its program and arguments
    argv: tuple[str, ...] = ()
    #: when it was accepted, in seconds since the epoch
    at: float = 0.0
    #: True where it outlives the program
    detached: bool = False


class RunFolder:
    """The folder of one run.

    Args:
        root: folder of all runs of a user on one cluster.
        run_id: the run.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.run_id = run_id
        self.path = root / run_id
        self._claim: Claim | None = None
        self._making = threading.Lock()
        self._read = 0
        self._rest = b""
        self._submitted: list[Submitted] = []

    @classmethod
    def all(cls, root: Path) -> list[RunFolder]:
        """The folders of all runs."""
        try:
            names = sorted(path.name for path in root.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []
        return [cls(root, name) for name in names]

    # -- the program that submits

    def create(self) -> None:
        """Make the folder and claim it. Idempotent.

        Raises:
            BackendError: it cannot be made.
        """
        with self._making:
            if self._claim is None:
                self._create()

    def _create(self) -> None:
        try:
            for name in _FOLDERS:
                (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            for module in first, node:
                assert module.__file__ is not None
                text = Path(module.__file__).read_text(encoding="utf-8")
                path = self.path / Path(module.__file__).name
                # a job of this run may be reading it
                _write(path.with_suffix(".new"), text.encode())
                path.with_suffix(".new").replace(path)
            self._claim = Claim(self.path)
        except OSError as error:
            msg = f"the folder of this run cannot be made at {self.path}: {error}"
            raise BackendError(msg) from error

    def add(
        self,
        key: str,
        spec: JobSpec,
        env: Mapping[str, str],
        *,
        streams: bool = False,
        host_variable: str = "",
    ) -> None:
        """Write down what a job is to run.

        Args:
            key: its key.
            spec: its specification.
            env: its environment.
            streams: True to have it take streams.
            host_variable: variable that has the node's name there; its host's name counts without one.

        Raises:
            BackendError: it cannot be written.
        """
        job = {
            "argv": spec.argv,
            "env": dict(env),
            "unset": sorted(spec.unset_env),
            "cwd": spec.cwd,
            # where a job runs that names no directory, if its node sees it
            "here": working_folder(),
            "private": spec.private is not None,
            "streams": streams,
            "host_variable": host_variable,
        }
        try:
            _write(self.path / "jobs" / f"{key}.json", json.dumps(job).encode())
            if spec.private is not None:
                _write(self.path / "private" / key, spec.private)
        except OSError as error:
            msg = f"what {spec.name} is to run cannot be written to {self.path}: {error}"
            raise BackendError(msg) from error

    def forget(self, key: str) -> None:
        """Remove what :meth:`add` wrote, for a job that the platform refused."""
        for path in (self.path / "jobs" / f"{key}.json", self.path / "private" / key):
            with contextlib.suppress(OSError):
                path.unlink()

    def submitted(self, jobs: Iterable[Submitted]) -> None:
        """Write down jobs that the platform accepted."""
        lines = "".join(f"{json.dumps(values.asdict(job))}\n" for job in jobs)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self.path / "submitted", flags, 0o600), "wb", buffering=0) as file:
            file.write(lines.encode())

    def renew(self, number: int) -> None:
        """Show that the program lives, and see at once what nodes have marked.

        A client of a network file system takes its listing of a folder for good until it changes
        something there itself.
        """
        for folder in (self.path / "marks", self.path):
            with contextlib.suppress(OSError):
                _write(folder / ".alive", str(number).encode())
                (folder / ".alive").replace(folder / "alive")

    def release(self) -> None:
        """Release the claim. Idempotent."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    def remove(self) -> None:
        """Remove everything."""
        self.release()
        remove_claimed(self.path)
        # a run that never claimed it, or whose owner file is gone
        shutil.rmtree(self.path, ignore_errors=True)

    # -- everybody

    def exists(self) -> bool:
        """True if the folder exists."""
        return self.path.is_dir()

    def log(self, key: str) -> Path:
        """File of what a job wrote."""
        return self.path / "logs" / key

    def jobs(self) -> list[Submitted]:
        """The jobs that the platform accepted, in their order."""
        try:
            with open(self.path / "submitted", "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return list(self._submitted)
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._submitted += map(_submitted, lines)
        return list(self._submitted)

    def marks(self) -> Iterator[tuple[str, str]]:
        """Key of each mark that is there, and ``started`` or ``ended``."""
        with contextlib.suppress(OSError):
            for path in (self.path / "marks").iterdir():
                key, _, what = path.name.partition(".")
                if key and what in {"started", "ended"}:
                    yield key, what

    def mark(self, key: str) -> Mark:
        """The marks of a job."""
        started = _read_json(self.path / "marks" / f"{key}.started")
        ended = None
        with contextlib.suppress(OSError):
            text = (self.path / "marks" / f"{key}.ended").read_text("utf-8", "replace")
            ended = end_of(first.last_word(text)[0])
        host, pid, port = (started.get(name) for name in ("host", "pid", "port"))
        return Mark(host=host, pid=pid, port=port, ended=ended)

    def liveness(self) -> Liveness:
        """Liveness of the program, as far as this host can prove it."""
        return liveness_of(self.path)

    def renewed(self) -> str:
        """The value that the program renews."""
        try:
            path = self.path / "alive"
            return f"{path.read_text(encoding='ascii')}/{path.stat().st_mtime_ns}"
        except (OSError, ValueError):
            return ""


def end_of(word: str) -> Ended | None:
    """The end that a mark's words tell; None where they tell none.

    Args:
        word: ``exit CODE``, ``signal NUMBER`` or ``start WORDS``.
    """
    what, _, rest = word.partition(" ")
    if what == "start":
        return Ended(127, Reason(ReasonKind.START), rest)
    if not rest.isdigit():
        return None
    number = int(rest)
    if what == "exit":
        return Ended(number, Reason(ReasonKind.EXIT, number))
    return Ended(-number, Reason(ReasonKind.SIGNAL, number)) if what == "signal" else None


def _submitted(line: bytes) -> Submitted:
    return Submitted(**{**(found := json.loads(line)), "argv": tuple(found["argv"])})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, data: bytes) -> None:
    # made with its mode: nobody can open it in between
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
