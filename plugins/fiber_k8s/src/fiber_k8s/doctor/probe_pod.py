"""Runs the probe in pods made as those of jobs are, and reads what it found."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fiber.exceptions import BackendError, UnknownJobError
from fiber.model import Job, JobSpec, JobStatus
from fiber_k8s.doctor.probe import MARK, WORD
from fiber_k8s.doctor.rights import question
from fiber_k8s.rbac import Right

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["Found", "Probe", "listening"]

#: lines of a pod that is no help otherwise
_KEPT = 5


@attrs.frozen(kw_only=True)
class Found:
    """What a pod's probe told, and how the pod ended where it did."""

    #: by the names that the probe gave
    told: dict[str, Any] = attrs.field(factory=dict)
    #: what else it wrote
    lines: tuple[str, ...] = ()
    #: how it stands now
    status: JobStatus | None = None


class Probe:
    """One pod with the probe; used as a context, after which it is gone.

    Args:
        backend: runs it.
        run_id: what it belongs to.
        image: that it runs in.
        python: the Python there.
        rights: to ask of its account.
        then: what it does afterwards: ``listen``, or ``dial``, a host and a port.
    """

    def __init__(
        self,
        backend: Backend,
        run_id: str,
        image: str | None,
        python: str,
        rights: Sequence[Right],
        then: Sequence[str],
    ) -> None:
        source = importlib.resources.files("fiber_k8s.doctor").joinpath("probe.py")
        questions = json.dumps([question(right) for right in rights])
        self._spec = JobSpec(
            run_id=run_id,
            name="doctor",
            argv=(python, "-c", source.read_text(encoding="utf-8"), questions, *then),
            image=image,
            # so that it has the account that programs of `fiber run` have
            env={"FIBER_BACKEND": backend.name},
        )
        self._backend = backend
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The pod, once it is accepted."""
        assert self._job is not None
        return self._job

    def __enter__(self) -> Probe:
        self._job = self._backend.submit(self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(UnknownJobError):
            self._backend.kill(self.job)

    def read(self, until: str) -> Found:
        """What the probe tells, until it has told a certain thing or has ended.

        Args:
            until: name of that thing.
        """
        told: dict[str, Any] = {}
        lines: list[str] = []
        with contextlib.ExitStack() as stack:
            written = self._backend.logs(self.job, follow=True)
            if isinstance(written, Generator):
                stack.callback(written.close)
            for line in written:
                if not line.startswith(MARK):
                    lines.append(line)
                    continue
                told.update(json.loads(line.removeprefix(MARK)))
                if until in told:
                    return Found(told=told, lines=tuple(lines))
        return Found(told=told, lines=tuple(lines[-_KEPT:]), status=self._status())

    def _status(self) -> JobStatus | None:
        try:
            return self._backend.status([self.job])[0]
        except BackendError:
            return None


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    """In this block this process answers pods that dial it; its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        server.setblocking(True)
        thread = threading.Thread(target=_answer, args=(server,), name="fiber-doctor", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            # closing alone leaves a thread in accept()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer, _ = server.accept()
            with peer:
                peer.setblocking(True)
                peer.sendall(WORD)
