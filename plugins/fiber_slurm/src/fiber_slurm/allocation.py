"""Steps of an allocation: processes of ``srun``, each of which waits for a place and then for an end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fiber._base import values
from fiber.backend_parts.batch.system import Batch, Phase, Row
from fiber.exceptions import BackendUnavailableError, SubmitError
from fiber.model import Durations, Reason, ReasonKind
from fiber_slurm import sruns
from fiber_slurm.config import SlurmConfig
from fiber_slurm.options import device_names
from fiber_slurm.steps import (
    BESIDE,
    Allocation,
    End,
    Step,
    end_of,
    run_of_step,
    step_command,
    step_name,
)

__all__ = ["StepTiming", "Steps", "node_of"]

_INSTEAD = "FIBER_SLURM_BY=sbatch submits batch jobs instead"


@values.frozen(kw_only=True)
class StepTiming(Durations):
    """Durations in seconds that steps wait for.

    A slurmctld that was started anew knows of no srun that waits, and has no place until its nodes have
    reported; srun itself asks again once a minute.
    """

    #: for which the end of a step is told, as Slurm does of jobs
    remembered: float = 300.0
    #: after Slurm could not be asked, for which steps that wait are started again; and between two times
    unsettled: float = 40.0
    again: float = 5.0


@values.define(kw_only=True)
class _Started:
    """A step that this program started."""

    name: str
    run_id: str
    command: Sequence[str]
    environ: Mapping[str, str]
    #: what srun writes
    errors: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    was_placed: bool = False
    #: True once its srun was seen to have ended
    has_left: bool = False
    ended: End | None = None
    ended_at: float = 0.0

    def start(self) -> None:
        """Start its ``srun``."""
        with self.errors.open("wb") as file:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=dict(self.environ),
                cwd="/",
                # neither Ctrl-C nor the end of the terminal is meant for it
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    def code(self) -> int | None:
        """Exit code of its ``srun``; None while that runs."""
        assert self.process is not None
        return self.process.poll()

    def end(self) -> None:
        """End its ``srun``, which waits for a place."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait()


class Steps:
    """The steps of this program, and what is seen of others'; thread-safe.

    A step's ``srun`` is a process of this program's in a session of its own. It waits until the
    allocation has a place, and writes why the step ended, which Slurm forgets at once.

    Args:
        config: settings.
        timing: its durations.
    """

    def __init__(self, config: SlurmConfig, timing: StepTiming) -> None:
        self._config = config
        self._timing = timing
        self._lock = threading.Lock()
        self._started: dict[str, _Started] = {}
        self._away_at = float("-inf")

    @property
    def are_there(self) -> bool:
        """True if this program has started steps."""
        return bool(self._started)

    def submit(
        self,
        batch: Batch,
        job: str,
        allocation: Allocation,
        *,
        program: str,
        environ: Mapping[str, str],
    ) -> Sequence[str]:
        """Start an ``srun`` for each of the jobs.

        Args:
            batch: the jobs.
            job: the allocation's id.
            allocation: what it has.
            program: path of ``srun``.
            environ: its environment, which it hands on.

        Raises:
            SubmitError: the allocation can never have a place for one.
        """
        self._refuse(batch, job, allocation)
        # unique in the run, as the name of the file is
        key = batch.output.name.removesuffix("system")
        ids = [f"{job}.{key}{number}" for number in range(len(batch.specs))]
        started: dict[str, _Started] = {}
        try:
            for number, job_id in enumerate(ids):
                _, *words = step_command(batch, self._config, job_id, number)
                one = _Started(
                    name=step_name(batch.name, job_id),
                    run_id=batch.spec.run_id,
                    command=[program, *words],
                    environ=environ,
                    errors=Path(f"{batch.output}-{number}"),
                )
                one.start()
                started[job_id] = one
        except OSError as error:
            for one in started.values():
                one.end()
            msg = f"srun cannot be run for {batch.spec.name}: {error}"
            raise SubmitError(msg) from error
        with self._lock:
            self._started.update(started)
        return ids

    def _refuse(self, batch: Batch, job: str, allocation: Allocation) -> None:
        request, name = batch.spec.resources, batch.spec.name
        if not allocation.is_live:
            state = allocation.state or "unknown to Slurm"
            msg = f"{name} has no place: the allocation {job} is over ({state}); {_INSTEAD}"
            raise SubmitError(msg)
        if not allocation.most:
            # its nodes are not told yet
            return
        if request.cpu is not None and request.cpu > allocation.most:
            msg = (
                f"{name} asks for {request.cpu:g} CPUs, and no node of the allocation {job} gives "
                f"more than {allocation.most}: ask for more when you allocate; {_INSTEAD}"
            )
            raise SubmitError(msg)
        names = device_names(self._config)
        for kind, count in request.devices.items():
            known = names.get(kind, kind).partition(":")[0]
            if count > allocation.devices.get(known, 0):
                msg = (
                    f"{name} asks for {count} of {kind}, and the allocation {job} has "
                    f"{allocation.devices.get(known, 0)}: ask for them when you allocate; {_INSTEAD}"
                )
                raise SubmitError(msg)

    # -- rows

    def note_outage(self) -> None:
        """Note that Slurm could not be asked just now."""
        self._away_at = time.monotonic()

    def rows(self, steps: Sequence[Step], allocations: Mapping[str, Row]) -> Iterator[Row]:
        """The rows of steps.

        Args:
            steps: those that have a place.
            allocations: rows of all jobs by their ids.
        """
        placed = {step.name: step for step in steps if not step.name.endswith(BESIDE)}
        now, timing = time.monotonic(), self._timing
        with self._lock:
            for job_id, one in list(self._started.items()):
                code = one.code()
                # an srun that is ended while it gets its place may leave its step: whether it did is told
                # by a list that was asked for after its end
                if one.has_left and one.ended is None and one.name not in placed:
                    assert code is not None
                    one.ended, one.ended_at = _end(one, code), now
                one.has_left = code is not None
                if one.ended is not None and now - one.ended_at > timing.remembered:
                    del self._started[job_id]
                waits = not one.has_left and not one.was_placed and one.name not in placed
                is_old = now - one.started_at > timing.again
                if waits and is_old and now - self._away_at < timing.unsettled:
                    one.end()
                    with contextlib.suppress(OSError):
                        # one that cannot be started has ended, as the next question finds
                        one.start()
            mine = {one.name: one for one in self._started.values()}
        for name, step in placed.items():
            found = run_of_step(name)
            assert found is not None
            run_id, job_id = found
            if name in mine:
                mine[name].was_placed = True
            yield _placed(step, job_id, run_id, allocations.get(job_id.partition(".")[0]))
        for name, one in mine.items():
            if name not in placed:
                found = run_of_step(name)
                assert found is not None
                yield _unplaced(one, found[1], allocations.get(found[1].partition(".")[0]))
        if not mine:
            yield from self._of_others(placed)

    def _of_others(self, placed: Mapping[str, Step]) -> Iterator[Row]:
        """Steps of other programs here that wait."""
        for _, name in sruns.waiting(lambda name: name not in placed):
            if (found := run_of_step(name)) is not None:
                run_id, job_id = found
                yield Row(id=job_id, phase=Phase.WAITING, run_id=run_id, message=_waits(job_id))

    # -- ends

    def signal(
        self,
        ids: Sequence[str],
        steps: Sequence[Step],
        signum: int,
        cancel: Callable[[Sequence[str]], object],
    ) -> None:
        """Send a signal to steps that have a place; the others' ``srun`` leaves.

        Args:
            ids: their ids.
            steps: those that have a place.
            signum: the signal.
            cancel: sends it to steps by their numbers.
        """
        wanted = {step_of.name: step_of for step_of in steps}
        numbers, unplaced = [], set()
        for job_id in ids:
            names = [name for name in wanted if name.removesuffix(BESIDE).endswith(f".{job_id}")]
            if signum != signal.SIGKILL:
                names = [name for name in names if not name.endswith(BESIDE)]
            numbers += [wanted[name].number for name in names]
            if not names:
                unplaced.add(job_id)
        if numbers:
            cancel(numbers)
        if unplaced:
            with self._lock:
                mine = [self._started.get(job_id) for job_id in unplaced]
            for one in mine:
                if one is not None and one.process is not None:
                    one.process.terminate()
            others = unplaced - self._started.keys()
            if others:
                sruns.end_waiting(
                    lambda name: (found := run_of_step(name)) is not None and found[1] in others
                )

    def guard(self, name: str, environ: Sequence[str]) -> Sequence[Sequence[str]]:
        """Commands that end the steps of a run, those that wait too."""
        words = (*environ, sys.executable, "-I", "-S", sruns.__file__, name)
        return [[*words, "TERM"], [*words, "KILL"]]


def node_of(job_id: str, steps: Sequence[Step]) -> Step:
    """The step of a job, for what is to run beside it.

    Raises:
        BackendUnavailableError: it has no place yet, or has ended.
    """
    for step in steps:
        if (found := run_of_step(step.name)) is not None and found[1] == job_id:
            return step
    msg = f"{job_id} has no place in its allocation now"
    raise BackendUnavailableError(msg)


def _placed(step: Step, job_id: str, run_id: str, allocation: Row | None) -> Row:
    phase, left = Phase.PLACED, [step.seconds_left]
    if allocation is not None:
        left.append(allocation.seconds_left)
        if allocation.phase in {Phase.SUSPENDED, Phase.ENDING}:
            phase = allocation.phase
    known = [seconds for seconds in left if seconds is not None]
    return Row(
        id=job_id,
        phase=phase,
        run_id=run_id,
        host=step.host or None,
        seconds_left=min(known, default=None),
    )


def _unplaced(one: _Started, job_id: str, allocation: Row | None) -> Row:
    row = Row(id=job_id, phase=Phase.WAITING, run_id=one.run_id, message=_waits(job_id))
    if one.ended is None:
        # its program has ended, and srun has not yet
        is_ending = one.was_placed or one.has_left
        return values.evolve(row, phase=Phase.ENDING, message="") if is_ending else row
    end = one.ended
    row = values.evolve(
        row,
        phase=Phase.ENDED,
        exit_code=end.code,
        reason=end.reason,
        message=end.message,
    )
    over = allocation is not None and allocation.phase in {Phase.ENDING, Phase.ENDED}
    if end.code == 0 or not over:
        return row
    assert allocation is not None
    # what ended the allocation ended all its steps
    reason = allocation.reason or end.reason or Reason(ReasonKind.CANCELLED)
    message = f"the allocation {job_id.partition('.')[0]} is over"
    return values.evolve(row, reason=reason, message=message)


def _waits(job_id: str) -> str:
    allocation = job_id.partition(".")[0]
    return f"waits for a place in the allocation {allocation}; {_INSTEAD}"


def _end(one: _Started, code: int) -> End:
    try:
        errors = one.errors.read_text("utf-8", "replace")
    except OSError:
        # the run's folder was removed
        errors = ""
    return end_of(errors, code)
