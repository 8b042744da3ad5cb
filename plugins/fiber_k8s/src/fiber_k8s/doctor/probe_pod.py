"""Pods that run the probe, created as those of jobs are, and their results."""

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
from fiber_k8s.doctor.access_review import review_fields
from fiber_k8s.doctor.probe import ANSWER, LINE_PREFIX
from fiber_k8s.rbac import Right

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["Probe", "ProbeResult", "listening"]

#: lines of other output that are kept
_KEPT = 5


@attrs.frozen(kw_only=True)
class ProbeResult:
    """Facts that a probe reported, and the pod's status where it has ended."""

    #: by the probe's names for them
    facts: dict[str, Any] = attrs.field(factory=dict)
    #: other lines of its output
    lines: tuple[str, ...] = ()
    #: status of the pod; None where it runs, or is not known
    status: JobStatus | None = None


class Probe:
    """A pod that runs the probe; a context manager, which kills it at its end.

    Args:
        backend: runs it.
        run_id: its run.
        image: its image.
        python: the Python there.
        rights: reviewed for its account.
        then: the probe's last step: ``listen``, or ``dial``, a host and a port.
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
        reviews = json.dumps([review_fields(right) for right in rights])
        self._spec = JobSpec(
            run_id=run_id,
            name="doctor",
            argv=(python, "-c", source.read_text(encoding="utf-8"), reviews, *then),
            image=image,
            # gives it the service account of programs of `fiber run`
            env={"FIBER_BACKEND": backend.name},
        )
        self._backend = backend
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The pod's job, once submitted."""
        assert self._job is not None
        return self._job

    def __enter__(self) -> Probe:
        self._job = self._backend.submit(self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(UnknownJobError):
            self._backend.kill(self.job)

    def read(self, until: str) -> ProbeResult:
        """Read the probe's output until it has reported a certain fact, or has ended.

        Args:
            until: name of that fact.
        """
        facts: dict[str, Any] = {}
        lines: list[str] = []
        with contextlib.ExitStack() as stack:
            written = self._backend.logs(self.job, follow=True)
            if isinstance(written, Generator):
                stack.callback(written.close)
            for line in written:
                if not line.startswith(LINE_PREFIX):
                    lines.append(line)
                    continue
                facts.update(json.loads(line.removeprefix(LINE_PREFIX)))
                if until in facts:
                    return ProbeResult(facts=facts, lines=tuple(lines))
        return ProbeResult(facts=facts, lines=tuple(lines[-_KEPT:]), status=self._status())

    def _status(self) -> JobStatus | None:
        try:
            return self._backend.status([self.job])[0]
        except BackendError:
            return None


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    """Within, this process answers pods that dial it; yields its port."""
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
                peer.sendall(ANSWER)
