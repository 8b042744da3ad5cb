"""``Ring``: equal members with ranks, on the selected backend."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber import hints
from fiber._ring import counters, events
from fiber._ring.controller import Coordinator
from fiber._ring.frameworks import find_framework
from fiber._ring.member import Work
from fiber._ring.model import Group, RingError, RingStatus
from fiber._ring.policy import Clean, Policy
from fiber._runtime import runtime
from fiber.exceptions import FiberError
from fiber.process import requested

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework

__all__ = ["Ring"]

_START_TIMEOUT = 300.0
#: signs of life in the time after which a member is given up
_BEATS = 10
#: most seconds between two
_SLOWEST = 2.0


class Ring:
    """Equal processes with ranks, which start together, know each other and end together.

    All members run ``initializer(ring, *initargs)`` and then ``func(rank, size)``. They start once
    all of them are up and have reached each other; the first that fails ends the others.

    Args:
        processes: how many members; or groups ``[(n, fiber.meta(…)), …]`` with needs of their own.
        func: called with ``(rank, size)`` in each member; ``@fiber.meta`` on it says what it needs.
        initializer: called first with the :class:`RingView` of the member, and ``initargs``.
        initargs: its further arguments.
        framework: whose rendezvous is prepared: ``"torch"``, ``"jax"``, ``"horovod"`` or another of
            those installed; a :class:`RingFramework` does as well.
        slots: ranks in one job; ``@fiber.meta(slots=…)`` says it for a group.
        min: fewest jobs that it goes on with.
        max: most jobs that it can be resized to.
        elastic: what becomes of ranks that run when there are more or fewer members:
            ``"restart"`` starts all of them again from what was committed, ``"live"`` lets them go
            on and tells them, for functions and frameworks that form up again by themselves.
        max_restarts: how many times all ranks are started again after one failed.
        backoff_limit: how many times it is tried again to bring all members up.
        start_timeout: seconds within which all are up, or none runs.
        deadline: seconds after which it has failed.
        ttl: seconds for which what it leaves is kept.
        clean: ``"all"``, ``"running"`` or ``"none"``: what is ended and forgotten at its end.
        launcher_is_member: the same as ``rank0="caller"``.
        rank0: ``"caller"`` makes this process the member with rank 0, on a thread of its own.
        heartbeat: seconds of silence after which a member is given up.
        name: of its jobs; one is made up by default.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: one out of range.
        FiberError: no such framework.
    """

    def __init__(
        self,
        processes: int | Sequence[tuple[int, Any]],
        func: Callable[[int, int], Any],
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        *,
        framework: str | RingFramework | None = None,
        slots: int = 1,
        min: int | None = None,
        max: int | None = None,
        elastic: str = "restart",
        max_restarts: int = 0,
        backoff_limit: int = 0,
        start_timeout: float = _START_TIMEOUT,
        deadline: float | None = None,
        ttl: float | None = None,
        clean: str = "all",
        launcher_is_member: bool = False,
        rank0: str = "job",
        heartbeat: float = 30.0,
        name: str | None = None,
    ) -> None:
        _callable("func", func)
        if initializer is not None:
            _callable("initializer", initializer)
        if rank0 not in ("job", "caller"):
            msg = f"rank0 must be 'job' or 'caller', got {rank0!r}"
            raise ValueError(msg)
        self._calls_here = launcher_is_member or rank0 == "caller"
        if elastic not in ("restart", "live"):
            msg = f"elastic must be 'restart' or 'live', got {elastic!r}"
            raise ValueError(msg)
        is_live = elastic == "live"
        if self._calls_here and (max_restarts or min is not None or max is not None or is_live):
            msg = "a ring that its caller is a member of cannot restart or be resized"
            raise ValueError(msg)
        self._groups = groups_of(processes, func, slots)
        self._policy = Policy(
            min=min,
            max=max,
            is_live=is_live,
            max_restarts=max_restarts,
            backoff_limit=backoff_limit,
            start_timeout=float(start_timeout),
            deadline=deadline,
            ttl=ttl,
            clean=_clean(clean),
            heartbeat=float(heartbeat),
        )
        #: name of the ring, and of its jobs
        self.name = name if name is not None else f"ring-{secrets.token_hex(2)}"
        self._work = Work(
            name=self.name,
            function=func,
            initializer=initializer,
            initargs=tuple(initargs),
            framework=find_framework(framework),
            beat=_beat(self._policy.heartbeat),
        )
        self._coordinator: Coordinator | None = None
        # judged now, so that what cannot be is told where it was written
        self._check()

    def run(self) -> list[Any]:
        """Start it, and wait for what its ranks return.

        Returns:
            the results, by rank.

        Raises:
            RingError: a member failed; the text has its rank, host, reason and traceback.
        """
        self.start()
        try:
            results = self.join()
        except RingError:
            raise
        except BaseException:
            self.terminate()
            raise
        assert results is not None, "waited for without a limit"
        return results

    def start(self) -> None:
        """Start the members, all at once; returns before they are up.

        Raises:
            Exception: what pickling the function, the initializer or its arguments raised.
        """
        if self._coordinator is not None:
            msg = "a ring can only be started once; make another one"
            raise FiberError(msg)
        groups = self._with_caller() if self._calls_here else self._requested()
        coordinator = Coordinator(
            runtime.current(), groups, self._policy, self._work, counters.Counting()
        )
        coordinator.start()
        self._coordinator = coordinator

    def join(self, timeout: float | None = None) -> list[Any] | None:
        """Wait until it is over, or ``timeout`` seconds have passed.

        Returns:
            the results, by rank; None when time ran out.

        Raises:
            RingError: a member failed.
        """
        coordinator = self._started()
        if not coordinator.outcome.wait(timeout):
            return None
        if self._policy.clean is Clean.ALL and self._policy.ttl is None:
            coordinator.wait_closed(_SLOWEST + self._policy.end_timeout)
        failure = coordinator.outcome.failure
        if failure is not None:
            error = RingError(f"{self.name} failed: {failure}", failure=failure)
            raise error from failure.error
        return coordinator.outcome.results()

    def terminate(self) -> None:
        """End all members now; of a ring that is over, let go of what it keeps. Idempotent."""
        if self._coordinator is not None:
            self._coordinator.tell(events.TerminateAsked())

    def suspend(self) -> None:
        """End its members until :meth:`resume`; what they committed last is kept."""
        self._started().tell(events.SuspendAsked())

    def resume(self) -> None:
        """Start its members again after :meth:`suspend`."""
        self._started().tell(events.ResumeAsked())

    def resize(self, processes: int) -> None:
        """Have another number of jobs from now on; its ranks are assigned anew and start again.

        Raises:
            ValueError: it is less than ``min`` or more than ``max``.
        """
        self._started().tell(events.ResizeAsked(processes))

    def status(self) -> RingStatus:
        """Where it stands: phase, conditions, events, placements, restarts.

        Raises:
            FiberError: it has not been started.
        """
        return self._started().status()

    def wait_for(
        self, condition: Callable[[RingStatus], bool], timeout: float | None = None
    ) -> bool:
        """Wait until something is true of its status, it is over, or time has run out.

        Returns:
            whether it is true.
        """
        return self._started().outcome.wait_for(condition, timeout)

    def __repr__(self) -> str:
        phase = "new" if self._coordinator is None else self._coordinator.status().phase.value
        return f"<{type(self).__name__} {self.name!r}, {phase}>"

    def _started(self) -> Coordinator:
        if self._coordinator is None:
            msg = f"{self.name} has not been started; call start() or run()"
            raise FiberError(msg)
        return self._coordinator

    def _check(self) -> None:
        from fiber._ring.machine import RingMachine

        RingMachine(self._groups, self._policy)

    def _requested(self) -> list[Group]:
        """The groups, with the settings' defaults for what they do not say."""
        from fiber._base import values

        current = runtime.current()
        return [
            values.evolve(
                group,
                resources=requested(
                    hints.Meta(
                        cpu=group.resources.cpu,
                        memory=group.resources.memory,
                        devices=group.resources.devices,
                    ),
                    current,
                ),
            )
            for group in self._groups
        ]

    def _with_caller(self) -> list[Group]:
        from fiber._base import values

        first, *others = self._requested()
        if first.slots != 1:
            msg = "a ring that its caller is a member of has one rank in its first job"
            raise ValueError(msg)
        caller = Group(workers=1, is_caller=True)
        rest = [values.evolve(first, workers=first.workers - 1)] if first.workers > 1 else []
        return [caller, *rest, *others]


def groups_of(processes: Any, func: Callable[..., Any], slots: int) -> list[Group]:
    """The groups that a user means.

    Args:
        processes: a number, or pairs of a number and ``fiber.meta(…)``.
        func: what its ``@fiber.meta`` says holds where a pair does not say otherwise.
        slots: ranks of a job whose hints do not say.

    Raises:
        TypeError: something else.
        ValueError: a number below 1.
    """
    own = hints.get_meta(func)
    _whole("slots", slots)
    if isinstance(processes, int):
        return [_group(processes, own, slots)]
    if isinstance(processes, (str, bytes)) or not isinstance(processes, Sequence):
        msg = f"processes must be a number or a list of groups, got {processes!r}"
        raise TypeError(msg)
    found = []
    for pair in processes:
        try:
            count, said = pair
        except (TypeError, ValueError) as error:
            msg = f"a group must be a pair (number, fiber.meta(…)), got {pair!r}"
            raise TypeError(msg) from error
        found.append(_group(count, own.merged(_meta(said)), slots))
    if not found:
        msg = "a ring needs at least one group"
        raise ValueError(msg)
    return found


def _meta(said: Any) -> hints.Meta:
    if isinstance(said, hints.Meta):
        return said
    if not callable(said):
        msg = f"a group's needs must be fiber.meta(…), got {said!r}"
        raise TypeError(msg)

    def bare() -> None:
        """Carries the hints."""

    said(bare)
    return hints.get_meta(bare)


def _group(count: Any, meta: hints.Meta, slots: int) -> Group:
    _whole("processes", count)
    return Group(
        workers=count,
        slots=meta.slots if meta.slots is not None else slots,
        resources=meta.resources,
        image=meta.image,
    )


def _callable(what: str, value: Any) -> None:
    if not callable(value):
        msg = f"{what} must be callable, got {value!r}"
        raise TypeError(msg)


def _whole(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{what} must be a whole number, got {value!r}"
        raise TypeError(msg)
    if value < 1:
        msg = f"{what} must be at least 1, got {value!r}"
        raise ValueError(msg)


def _beat(heartbeat: float) -> float:
    """Seconds between signs of life."""
    return min(heartbeat / _BEATS, _SLOWEST)


def _clean(value: str) -> Clean:
    try:
        return Clean(value)
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in Clean)
        msg = f"clean must be one of {known}, got {value!r}"
        raise ValueError(msg) from error
