"""Base classes for plugins: :class:`Backend` and :class:`ResourceProvider`."""

from __future__ import annotations

import abc
import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    CapabilityError,
    SubmitError,
    UnknownJobError,
)

if TYPE_CHECKING:
    import socket
    from typing import BinaryIO

    from fiber.model.job import Capacity, Check, Device, Job, JobSpec, JobStatus, Reach

__all__ = ["API_VERSION", "Backend", "ResourceProvider"]

#: Version of the contract in this module. A plugin written for another major version, or for a
#: later minor one, is refused by name.
API_VERSION = (1, 0)


class Backend(abc.ABC):
    """Runs jobs on one platform.

    Implementations must be thread-safe: every method may be called from any thread at any time.
    Methods that ask the platform raise :class:`~fiber.exceptions.BackendUnavailableError` when it
    cannot be asked; failing to ask is never a job state. A job that the platform does not know
    raises :class:`~fiber.exceptions.UnknownJobError`.
    """

    #: canonical name, the same as in :class:`~fiber.model.BackendInfo`
    name: str

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> Job:
        """Start a job; return once the platform has accepted it.

        Raises:
            SubmitError: the platform refused it; the message has the platform's own text.
            CapabilityError: the spec asks for what cannot be done here. What its backend does not
                declare the core refuses before: no such spec comes.
            BackendUnavailableError: the platform could not be asked. Where it has answered before,
                the core submits the same spec again, for a minute in all: what an attempt left on
                the platform must not run, and goes with the run at the latest.
        """

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Start several jobs in one call, where the platform has one.

        Rings and ``fiber mpirun`` call it for a gang, where a backend overrides it and no plugin has
        ``fiber_submit_job``: all specs then have the same ``gang`` and are all of it, so that a batch
        system may make one job of several parts of them. It returns once they are accepted, not when
        they run: the caller ends them all unless they do within the gang's timeout, or sooner. Others
        have nothing to do with each other.

        Pools call it for workers that they start at once, 256 at most, on the same conditions; the
        first worker comes by :meth:`submit`, and so do all after one that failed, until one is up.
        This one calls :meth:`submit` for each. After a
        platform could not be asked, it is not asked for the rest.

        Returns:
            one entry for each spec, in their order, which is its job, or the ``SubmitError``,
            ``CapabilityError`` or ``BackendUnavailableError`` that :meth:`submit` would have raised.
            What was refused, or found the platform unavailable, is submitted again as by
            :meth:`submit`; errors of one call count as one.
        """
        found: list[Job | BackendError] = []
        unavailable: BackendUnavailableError | None = None
        try:
            for spec in specs:
                if unavailable is None:
                    try:
                        found.append(self.submit(spec))
                    except BackendUnavailableError as error:
                        unavailable = error
                    except (SubmitError, CapabilityError) as error:
                        found.append(error)
                if unavailable is not None:
                    found.append(unavailable)
        except BaseException:
            _end_all(self, (one for one in found if not isinstance(one, BackendError)))
            raise
        return found

    @abc.abstractmethod
    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Yield every change of every job of a run, in order, until :meth:`close` is called.

        One stream a run, resumed by the implementation after a break. The current status of jobs
        submitted before the call comes first. A terminal status is yielded exactly once.

        A job that was terminated and whose end the platform, while reachable, does not confirm within
        some 20 s after its grace has failed with the reason NODE_LOST.

        NODE_LOST may be told of a job that may live yet: a platform that hears nothing of a node
        knows no more. While the job of a process, pool or ring is connected to its parent, the core
        goes on with it as if nothing had been told, and the job has ended when that connection does.
        One that is not connected has ended at once: its work is done elsewhere, and should it come
        back it is told to end. Cut off from its parent it ends its processes by itself after the
        lease, so both may do the same work for that long at most.
        """

    @abc.abstractmethod
    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """Return the status of many jobs, in their order, in one call to the platform."""

    @abc.abstractmethod
    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Ask a job to end (SIGTERM), and kill what is left of it after ``grace`` seconds.

        Returns at once. Idempotent, also after the job's end.
        """

    @abc.abstractmethod
    def kill(self, job: Job) -> None:
        """End a job and all its processes at once (SIGKILL). Idempotent, also after its end."""

    def signal(self, job: Job, index: int, signum: int) -> None:
        """Send a signal to one process of a job; a process that has ended is no error."""
        raise CapabilityError(self.name, "fork", "signal")

    def interrupt(self, job: Job) -> bool:
        """Interrupt a job (SIGINT) since the program that submitted it was interrupted.

        Returns:
            Whether it was sent. It is not where the job has ended, or the same interrupt has reached it
            by itself, as a terminal's may; see ``foreground`` of a job's spec.
        """
        self.signal(job, 0, signal.SIGINT)
        return True

    def warm_up(self) -> None:  # noqa: B027 - optional
        """Prepare for jobs about to be submitted: start slow steps, but do not wait for them."""

    def preload(self, modules: Sequence[str]) -> None:  # noqa: B027 - optional
        """Import modules once in the process that forks jobs, so that each job has them.

        A hint: backends that do not fork ignore it, and a module that cannot be imported is skipped.
        """

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, complete and in order, without their newlines.

        Args:
            job: the job.
            tail: only the last so many lines of those there are.
            follow: go on until the job has ended.
        """
        raise CapabilityError(self.name, "logs", "logs")

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program beside a job, its output to ours; return its exit code."""
        raise CapabilityError(self.name, "exec", "exec")

    def copy(self, src: str, dst: str) -> None:
        """Copy files to or from a volume, written ``claim:path``."""
        raise CapabilityError(self.name, "copy", "copy")

    @abc.abstractmethod
    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """List the jobs that exist, of one run or of all runs of this user."""

    @abc.abstractmethod
    def cleanup(self, run_id: str) -> None:
        """End every job of a run and remove everything it left. Idempotent.

        Called by ``fiber gc`` for a run of this host whose program has died, and for a detached run
        whose jobs have all ended; by ``fiber run`` for a job that it followed to its end, or could
        not start. A program that ends in an orderly way calls :meth:`close` alone, and nobody calls
        this one afterwards.
        """

    def prepare_image(self, context: str) -> str | None:
        """Build the image that a folder describes, push it where jobs need that; return its name.

        None where it describes none.

        Args:
            context: the folder, or the file in it that describes the image.

        Raises:
            AmbiguousImageError: the folder describes several.
        """
        raise CapabilityError(self.name, "images", "prepare_image")

    def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove what ended runs of this user left on the platform, from whichever host they began.

        For ``fiber gc``, which itself cleans up after runs that began on this host. Only what is
        proven to be over may be removed; ``fiber.backend_parts.liveness`` has the rule, and proofs.

        Args:
            dry_run: remove nothing.

        Returns:
            the ids of those runs.
        """
        return ()

    @abc.abstractmethod
    def capacity(self) -> Capacity:
        """Return the platform's capacity for jobs."""

    @abc.abstractmethod
    def reach(self, job: Job) -> Reach:
        """Return how the job and the process that submitted it connect."""

    def open_stream(self, job: Job) -> socket.socket:
        """Open a byte stream to the socket that ``FIBER_REACH=streams:WHERE`` of a running job names.

        For jobs that cannot dial the process that submitted them, whose ``reach`` is ``REVERSED``:
        the core keeps one such stream open in each job, and carries connections over it.

        Returns:
            a connected stream socket, which the caller closes; one end of a pair, say, whose other
            end the backend copies to and from the platform. It ends where the stream ends.

        Raises:
            BackendUnavailableError: it cannot be opened now; the core tries again while the job
                runs.
        """
        raise CapabilityError(self.name, "streams", "open_stream")

    @abc.abstractmethod
    def check(self) -> Iterable[Check]:
        """Check the platform end to end, for ``fiber doctor``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything; iterators of :meth:`events` end. Idempotent.

        Called at the end of a program or command, whether it submitted anything or not. Where this
        backend has a run (``run_id`` of its context), its jobs that are not detached have ended when
        this returns. Of those it removes what is of use to nobody any more, for nobody calls
        :meth:`cleanup` after a program that ended well. What detached jobs left stays, for them and
        for ``fiber logs`` and ``fiber ps -a``, until ``fiber gc``.

        Raises:
            BackendUnavailableError: the platform cannot be asked; everything else was released, and
                nothing is waited for. The core says so, and the jobs end by their leases.
        """


def _end_all(backend: Backend, jobs: Iterable[Job]) -> None:
    for job in jobs:
        # it may have ended by itself and been removed
        with contextlib.suppress(UnknownJobError):
            backend.kill(job)


class ResourceProvider(abc.ABC):
    """Devices of one kind: how to find them, and the environment that assigns them to a process.

    Instances must be picklable: ``environment`` is called in the process that gets the devices.
    """

    #: name of the kind for users: ``@fiber.meta(gpu=1)``
    kind: str
    #: name for Kubernetes and container runtimes, for example ``nvidia.com/gpu``
    device_class: str

    @abc.abstractmethod
    def probe(self) -> Sequence[str]:
        """Return an argv that prints this host's devices; ``{python}`` stands for a Python with fiber."""

    @abc.abstractmethod
    def parse(self, output: str) -> Sequence[Device]:
        """Parse the devices in the output of :meth:`probe`; an empty sequence where there are none.

        Raises:
            ResourceError: the output is malformed; the message quotes it.
        """

    @abc.abstractmethod
    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """Return environment variables with which a process sees exactly these devices."""
