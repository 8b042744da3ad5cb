"""Base classes: of all kits, with levels, measurements and the rule for overridden tests; and of the backend kit.

The latter has fixtures and attributes to be overridden by subclasses. A :class:`Driver` runs its jobs: submits, waits
for statuses on the event stream, cleans up.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import attrs
import pytest

from fiber._agent import rundir
from fiber._config.settings import load_config
from fiber._plugins.backend_choice import refuse_undeclared
from fiber._plugins.manager import load_plugins
from fiber.abc import Backend
from fiber.exceptions import CapabilityError
from fiber.model import BackendContext, Capabilities, Job, JobSpec, JobState, JobStatus, Volume
from fiber.testing.kit import LEVELS
from fiber.testing.witness import JOB_VARIABLE, RUN_VARIABLE, Witness

#: name of the property by which a test's facts reach the results
RECORD = "fiber_kit"

#: facts about a test for the results: its level, its subject, its measurements
Facts = dict[str, Any]


class Kit:
    """Base of the kits."""

    #: the kit's name in results; a kit sets it
    kit_name: str = ""
    #: level of the tests that a class of the kit defines
    level: int = 1
    #: levels to run; begin with the first ones while a backend is being written
    levels: Collection[int] = tuple(LEVELS)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse to override a test of the kit without a reason.

        Raises:
            TypeError: a test is overridden by one that is not marked ``xfail`` with a reason.
        """
        super().__init_subclass__(**arguments)
        if cls.__module__.startswith("fiber.testing."):
            return
        for name, value in vars(cls).items():
            inherited = any(name in vars(base) for base in cls.__mro__[1:])
            if name.startswith("test") and inherited and not _has_reason(value):
                msg = (
                    f"{cls.__name__}.{name} overrides a test of the conformance kit; mark it with "
                    f"pytest.mark.xfail(reason=...) and say why the kit cannot pass"
                )
                raise TypeError(msg)

    @pytest.fixture(autouse=True)
    def facts(self, request: pytest.FixtureRequest) -> Facts:
        """Facts about this test for the results; skips a test whose level is not to be run."""
        name = getattr(request.node, "originalname", request.node.name)
        level = level_of(type(self), name)
        facts: Facts = {"kit": self.kit_name, "level": level}
        request.node.user_properties.append((RECORD, facts))
        if level is not None and level not in self.levels:
            pytest.skip(f"{type(self).__name__} runs levels {sorted(self.levels)} only")
        return facts

    @pytest.fixture
    def measure(self, facts: Facts) -> Callable[[str, float], None]:
        """Function that records a number in the results: ``measure("seconds to notice", 0.02)``."""

        def record(quantity: str, number: float) -> None:
            facts.setdefault("measured", {})[quantity] = round(number, 4)

        return record


def level_of(cls: type, name: str) -> int | None:
    """Return the level of a test of the kit; None for a test of the subclass's own."""
    found = None
    for base in cls.__mro__:
        if name in vars(base) and base.__module__.startswith("fiber.testing."):
            found = vars(base).get("level", getattr(base, "level", None))
    return found


def _has_reason(test: Any) -> bool:
    marks = getattr(test, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)


class Platform(Kit):
    """Base class of the backend kit's tests: its fixtures, and attributes for subclasses."""

    kit_name = "backend"
    level = 2
    #: Python that jobs run; a name, where jobs do not run on this host
    python: str = sys.executable
    #: image that jobs run in, where the backend runs images
    image: str | None = None
    #: timeout in seconds of any one wait
    patience: float = 30.0
    #: devices of the whole platform by kind, where its capacity does not have them before a job asks
    devices: Mapping[str, int] = MappingProxyType({})
    #: devices that one job can have by kind, where that is fewer: those of one host, say
    devices_per_job: Mapping[str, int] = MappingProxyType({})
    #: True where a program that stops itself by SIGSTOP is noticed, False where only the platform's
    #: own tool suspends jobs; None: noticed where jobs run on this host
    notices_stops: bool | None = None
    #: capabilities of the backend; by default those of its installed plugin
    capabilities: Capabilities | None = None

    def survivors(self, run_id: str) -> Sequence[str] | None:
        """List what is left of a run, found without the backend; None where that is impossible.

        Override it where the platform has other tools, such as a command or a process list. It is
        called after the run was cleaned up and the backend closed. With a fixture ``witness``, its
        ``left`` is called too.
        """
        return None

    @pytest.fixture
    def run_id(self) -> str:
        """Id of a run of its own for each test."""
        return secrets.token_hex(4)

    @pytest.fixture
    def config(self) -> Any:
        """Settings of the backend under test, an instance of its ``BackendInfo.config`` class.

        The kit puts them into every context that it makes, so that ``backend`` and ``reopen`` find
        them there; None for a backend without settings.
        """
        return None

    @pytest.fixture
    def context(self, run_id: str, config: Any) -> Iterator[BackendContext]:
        """Context of a backend, with the settings of the fixture ``config``."""
        directory = rundir.create(run_id, "kit")
        yield BackendContext(run_id=run_id, run_directory=str(directory), config=config)
        rundir.remove(directory)

    @pytest.fixture
    def other(
        self, reopen: Callable[[BackendContext], Backend], context: BackendContext
    ) -> Iterator[Driver]:
        """Another run on the same platform, as another program of the same user has."""
        run_id = secrets.token_hex(4)
        directory = rundir.create(run_id, "kit")
        backend = reopen(attrs.evolve(context, run_id=run_id, run_directory=str(directory)))
        driver = Driver(
            backend, run_id, python=self.python, image=self.image, patience=self.patience
        )
        yield driver
        driver.close()
        rundir.remove(directory)

    @pytest.fixture
    def backend(self) -> Backend:
        """The backend; every subclass must override this fixture."""
        msg = "a subclass of BackendConformance must have a fixture named backend"
        raise NotImplementedError(msg)

    @pytest.fixture
    def unreachable(self) -> Backend:
        """A backend whose platform is unavailable; optional."""
        pytest.skip("the subclass has no fixture 'unreachable'")

    @pytest.fixture
    def reopen(self, backend: Backend) -> Callable[[BackendContext], Backend]:
        """Function that makes another backend on the same platform, as another program would.

        Needed where ``detached`` is declared.
        """
        self._not_given(backend, "reopen", "detached")

    @pytest.fixture
    def volume(self, backend: Backend) -> Volume:
        """A volume that jobs can write to; needed where ``volumes`` or ``copy`` is declared."""
        self._not_given(backend, "volume", "volumes", "copy")

    @pytest.fixture
    def image_context(self, backend: Backend) -> str:
        """A folder that ``prepare_image`` can build; needed where ``images`` is declared."""
        self._not_given(backend, "image_context", "images")

    @pytest.fixture
    def witness(self) -> Witness | None:
        """Access to the platform by other means than the backend; None where there is none.

        :class:`~fiber.testing.HostWitness` fits where jobs are processes of this host, also inside
        containers.
        """
        return None

    @pytest.fixture
    def settings(self) -> Mapping[str, str]:
        """Variables that a program needs to use this backend, as its users set them.

        ``FIBER_BACKEND`` is among them already. The master is a process of this host.
        """
        return {}

    @pytest.fixture
    def kit(
        self, backend: Backend, run_id: str, witness: Witness | None, facts: Facts
    ) -> Iterator[Driver]:
        """Driver of jobs on the backend; afterwards checks that nothing is left of them."""
        facts["name"] = backend.name
        facts["capabilities"] = self.declared(backend).names()
        driver = Driver(
            backend, run_id, python=self.python, image=self.image, patience=self.patience
        )
        yield driver
        driver.close()
        left = self.survivors(run_id)
        assert not left, f"cleanup and close left of run {run_id}: {left}"
        if witness is not None and witness.can("left"):
            found = self.wait_until(lambda: not witness.left(run_id))
            assert found, f"cleanup and close left of run {run_id}: {list(witness.left(run_id))}"

    def declared(self, backend: Backend) -> Capabilities:
        """Return the backend's capabilities."""
        if self.capabilities is not None:
            return self.capabilities
        info = load_plugins().find_backend(backend.name)
        if info.capabilities_for is None:
            return info.capabilities
        return info.with_settings(load_config({}, backend_info=info).settings).capabilities

    def _not_given(self, backend: Backend, fixture: str, *capabilities: str) -> NoReturn:
        declared = [name for name in capabilities if getattr(self.declared(backend), name)]
        if declared:
            pytest.fail(
                f"{backend.name} declares {declared[0]!r}, and {type(self).__name__} has no fixture "
                f"{fixture!r} to prove it with",
                pytrace=False,
            )
        words = " or ".join(map(repr, capabilities))
        pytest.skip(f"{backend.name} does not declare {words}, and there is no {fixture!r}")

    def require_witness(self, witness: Witness | None, *names: str) -> Witness:
        """Return the witness; skips the test where it lacks one of these methods."""
        if witness is None:
            pytest.skip(f"{type(self).__name__} has no fixture 'witness'")
        for name in names:
            if not witness.can(name):
                pytest.skip(f"{type(witness).__name__} cannot be asked for {name!r}")
        return witness

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Poll a predicate until it is true; False after ``patience`` seconds."""
        began = time.monotonic()
        deadline = began + self.patience
        while not is_so():
            now = time.monotonic()
            if now > deadline:
                return False
            # there are no events but the backend's; a witness may take its time, and the CPU's
            time.sleep(max(0.02, min(2 * (now - began), 0.5)))
            began = time.monotonic()
        return True

    def wait_until_seen(self, witness: Witness, *jobs: Job) -> None:
        """Wait until a witness sees jobs, which a platform may call running a moment before."""
        if self.wait_until(lambda: all(witness.is_running(job) for job in jobs)):
            return
        unseen = ", ".join(job.name for job in jobs if not witness.is_running(job))
        msg = (
            f"the witness found no process of {unseen} within {self.patience:g} s, although the "
            f"backend reported RUNNING: RUNNING means that the program was started"
        )
        raise AssertionError(msg)

    def skip_unless_declared(self, backend: Backend, *names: str) -> None:
        """Skip the test where the backend does not declare one of these capabilities."""
        declared = self.declared(backend)
        for name in names:
            if not getattr(declared, name):
                pytest.skip(f"{backend.name} does not declare {name!r}")

    def skip_where_missing(self, backend: Backend, name: str) -> None:
        """Skip the test where the platform's configuration rules out a declared capability."""
        for check in backend.check():
            if name in check.missing:
                pytest.skip(f"{backend.name}: {check.detail}")

    def submit(self, backend: Backend, spec: JobSpec) -> Job:
        """Submit a job as the core does: what is not declared is refused before the backend is asked."""
        refuse_undeclared(backend.name, self.declared(backend), spec)
        return backend.submit(spec)

    def is_refused(self, backend: Backend, name: str, ask: Callable[[], object]) -> bool:
        """Return True for an undeclared capability, after a check that its use raises CapabilityError."""
        if getattr(self.declared(backend), name):
            return False
        with pytest.raises(CapabilityError) as caught:
            ask()
        text = str(caught.value)
        assert backend.name in text, f"the refusal does not name the backend: {text!r}"
        assert len(text.split()) > 3, f"the refusal is no sentence: {text!r}"
        return True


_RANK = {
    JobState.PENDING: 0,
    JobState.RUNNING: 1,
    JobState.SUSPENDED: 1,
    JobState.UNKNOWN: None,
    JobState.SUCCEEDED: 2,
    JobState.FAILED: 2,
}


class Driver:
    """Run of jobs on one backend, with all statuses of its event stream.

    Args:
        backend: backend to run jobs on.
        run_id: id of the run.
        python: Python that jobs run.
        image: image that they run in, where the backend runs images.
        patience: timeout in seconds of any one wait.
    """

    def __init__(
        self, backend: Backend, run_id: str, *, python: str, image: str | None, patience: float
    ) -> None:
        self.backend = backend
        self.run_id = run_id
        self.patience = patience
        self._python = python
        self._image = image
        self._statuses: dict[str, list[JobStatus]] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stream: threading.Thread | None = None

    def spec(self, argv: Sequence[str], **fields: Any) -> JobSpec:
        """Make the specification of a job of this run; ``argv`` as :mod:`fiber.testing.programs` makes it."""
        fields.setdefault("name", f"kit-{secrets.token_hex(3)}")
        fields.setdefault("run_id", self.run_id)
        marks = {JOB_VARIABLE: fields["name"], RUN_VARIABLE: fields["run_id"]}
        fields["env"] = {**marks, **fields.get("env", {})}
        fields.setdefault("image", self._image)
        return JobSpec(argv=(self._python, *argv[1:]), **fields)

    def submit(self, argv: Sequence[str], **fields: Any) -> Job:
        """Submit a job."""
        return self.backend.submit(self.spec(argv, **fields))

    def run(self, argv: Sequence[str], **fields: Any) -> JobStatus:
        """Submit a job and wait for its end."""
        return self.end(self.submit(argv, **fields))

    def ready(self, argv: Sequence[str], **fields: Any) -> Job:
        """Submit a job and wait until it has printed ``ready``."""
        job = self.submit(argv, **fields)
        self.wait_ready(job)
        return job

    def wait_ready(self, job: Job) -> list[str]:
        """Wait until a job has printed ``ready``; returns the lines before."""
        before: list[str] = []
        lines = self.backend.logs(job, follow=True)
        try:
            for line in lines:
                if line == "ready":
                    return before
                before.append(line)
        finally:
            close = getattr(lines, "close", None)
            if close is not None:
                close()
        msg = f"{job} ended without printing ready: {self.backend.status([job])[0]}; it printed {before}"
        raise AssertionError(msg)

    def wait_running(self, *jobs: Job) -> None:
        """Wait until jobs are reported to run."""
        for job in jobs:
            self.until(job, lambda status: status.state is JobState.RUNNING, "running")

    def end(self, job: Job) -> JobStatus:
        """Wait for a job's terminal status."""
        return self.until(job, lambda status: status.state.is_terminal, "its end")

    def until(
        self, job: Job, fits: Callable[[JobStatus], bool], what: str, *, after: int = 0
    ) -> JobStatus:
        """Wait for a status on the event stream; returns the first that fits.

        Args:
            job: the job.
            fits: predicate for the status.
            what: what is awaited, for the message.
            after: number of the job's statuses to skip.

        Raises:
            AssertionError: none fits in time, or the stream has ended.
        """
        self.watch()
        found: list[JobStatus] = []

        def is_found() -> bool:
            statuses = self._statuses.get(job.id, [])[after:]
            found[:] = [status for status in statuses if fits(status)][:1]
            return bool(found) or self._failure is not None

        with self._changed:
            self._changed.wait_for(is_found, self.patience)
        if found:
            return found[0]
        if self._failure is not None:
            msg = f"the event stream ended while {what} of {job} was awaited"
            raise AssertionError(msg) from self._failure
        msg = f"{what} of {job} was not reported within {self.patience:g} s; reported: {self.statuses(job)}"
        raise AssertionError(msg)

    def statuses(self, job: Job) -> list[JobStatus]:
        """Return all statuses of a job from the event stream so far."""
        with self._changed:
            return list(self._statuses.get(job.id, ()))

    def watch(self) -> None:
        """Open the event stream of the run, once."""
        with self._changed:
            if self._stream is None:
                self._stream = threading.Thread(target=self._follow, name="kit-events", daemon=True)
                self._stream.start()

    def _follow(self) -> None:
        try:
            for job, status in self.backend.events(self.run_id):
                with self._changed:
                    self._statuses.setdefault(job.id, []).append(status)
                    self._changed.notify_all()
            ended: BaseException = StopIteration("the stream ended")
        except BaseException as error:  # it reaches the test in until() or close()
            ended = error
        with self._changed:
            self._failure = ended
            self._changed.notify_all()

    def close(self) -> None:
        """End all jobs, close the backend, and check the statuses of the event stream."""
        self.backend.cleanup(self.run_id)
        self.backend.close()
        if self._stream is not None:
            self._stream.join(self.patience)
            assert not self._stream.is_alive(), "close() did not end the iterator of events()"
            if not isinstance(self._failure, StopIteration):
                msg = "the iterator of events() raised"
                raise AssertionError(msg) from self._failure
        for job, statuses in self._statuses.items():
            self._check_order(job, statuses)

    @staticmethod
    def _check_order(job: str, statuses: Sequence[JobStatus]) -> None:
        ranks = [_RANK[s.state] for s in statuses if _RANK[s.state] is not None]
        assert ranks == sorted(ranks), f"states of {job} went back: {statuses}"  # type: ignore[type-var]
        ends = [status for status in statuses if status.state.is_terminal]
        assert len(ends) <= 1, f"{job} ended more than once: {statuses}"


def is_gone(pid: int, patience: float) -> bool:
    """Wait until a process of this host that is no child of ours has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        # psutil waits on a pidfd where the kernel has them
        deadline = time.monotonic() + patience
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            # there is no event for the end of such a process
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pass
    return True
