"""The public class :class:`Ring`: checks its arguments and starts a controller."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber import hints
from fiber._base import values
from fiber._ring import events, model
from fiber._ring.controller import MemberProtocol, RingController
from fiber._ring.frameworks import find_framework
from fiber._ring.machine import RingMachine
from fiber._ring.member import MemberSpec
from fiber._ring.model import Clean, Group, Policy, RingError, RingStatus, RingTiming
from fiber._runtime import runtime
from fiber.exceptions import FiberError
from fiber.process import requested

if TYPE_CHECKING:
    from fiber._ring.frameworks import RingFramework

log = logging.getLogger("fiber")


class Ring:
    """Equal processes with ranks, which start together, know each other and end together.

    All members run ``initializer(ring, *initargs)`` and then ``func(rank, size)``. They start once
    all of them are up and have reached each other; the first that fails ends the others.

    Args:
        processes: number of jobs; or groups ``[(n, fiber.meta(…)), …]`` with resources of their
            own.
        func: called with ``(rank, size)`` in each member; takes resources from ``@fiber.meta``.
        initializer: called first with the :class:`RingView` of the member, and ``initargs``.
        initargs: further arguments of the initializer.
        framework: framework to prepare: ``"torch"``, ``"jax"``, ``"horovod"`` or the name of
            another that is installed; or a :class:`RingFramework`.
        open_ports: True where a framework may open servers that ask nobody for a key, as those of
            TensorFlow, XGBoost and MXNet do: where only the members reach their network.
        slots: ranks in one job; ``@fiber.meta(slots=…)`` sets it for a group.
        min: fewest jobs that the ring runs with; all of them by default.
        max: most jobs that it can be resized to; the number that it began with by default.
        elastic: reaction to a change of members while ranks run: ``"restart"`` restarts all ranks
            from the last committed state; ``"live"`` lets them go on and notifies them, for
            functions and frameworks that rebuild their group by themselves.
        max_restarts: restarts of all ranks after one has failed.
        backoff_limit: further attempts to bring all members up.
        start_timeout: seconds within which all members must be up, or none runs; and for the
            members of a live ring to meet one that comes later, or another one is tried.
        deadline: seconds after which the ring has failed.
        ttl: seconds after the end for which jobs and records are kept.
        clean: jobs to clean up at the end: ``"all"``, ``"running"`` or ``"none"``.
        launcher_is_member: the same as ``rank0="caller"``.
        rank0: ``"caller"`` runs rank 0 on a thread of this process, ``"job"`` in a job.
        heartbeat: seconds of silence after which a member is lost.
        name: name of the ring and its jobs; random by default.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a framework that needs ``open_ports``.
        FiberError: no framework of that name is installed.
    """

    def __init__(
        self,
        processes: int | Sequence[tuple[int, Any]],
        func: Callable[[int, int], Any],
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        *,
        framework: str | RingFramework | None = None,
        open_ports: bool = False,
        slots: int = 1,
        min: int | None = None,
        max: int | None = None,
        elastic: str = "restart",
        max_restarts: int = 0,
        backoff_limit: int = 0,
        start_timeout: float = 300.0,
        deadline: float | None = None,
        ttl: float | None = None,
        clean: str = "all",
        launcher_is_member: bool = False,
        rank0: str = "job",
        heartbeat: float = 30.0,
        name: str | None = None,
    ) -> None:
        _check_callable("func", func)
        if initializer is not None:
            _check_callable("initializer", initializer)
        if rank0 not in ("job", "caller"):
            msg = f"rank0 must be 'job' or 'caller', got {rank0!r}"
            raise ValueError(msg)
        self._has_caller = launcher_is_member or rank0 == "caller"
        if elastic not in ("restart", "live"):
            msg = f"elastic must be 'restart' or 'live', got {elastic!r}"
            raise ValueError(msg)
        is_live = elastic == "live"
        if self._has_caller and (max_restarts or min is not None or max is not None or is_live):
            msg = "a ring that its caller is a member of cannot restart or be resized"
            raise ValueError(msg)
        self._groups = parse_groups(processes, func, slots)
        self._policy = Policy(
            min=min,
            max=max,
            is_live=is_live,
            max_restarts=max_restarts,
            backoff_limit=backoff_limit,
            start_timeout=float(start_timeout),
            deadline=deadline,
            ttl=ttl,
            clean=_parse_clean(clean),
            heartbeat=float(heartbeat),
        )
        #: name of the ring, and of its jobs
        self.name = name if name is not None else f"ring-{secrets.token_hex(2)}"
        self._spec = MemberSpec(
            name=self.name,
            function=func,
            initializer=initializer,
            initargs=tuple(initargs),
            framework=_parse_framework(framework, open_ports=open_ports),
            heartbeat_interval=self._policy.heartbeat_interval,
            timing=self._policy.timing,
        )
        self._controller: RingController | None = None
        # checked now, so that the error is raised by the constructor
        RingMachine(self._groups, self._policy)

    def run(self) -> list[Any]:
        """Start the ring and wait for its results.

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
            FiberError: the ring was started before.
            Exception: any error of pickling the function, the initializer or its arguments.
        """
        if self._controller is not None:
            msg = "a ring can only be started once; make another one"
            raise FiberError(msg)
        groups = self._with_caller() if self._has_caller else self._resolved_groups()
        current = runtime.current()
        timing = RingTiming.at(current.timing.scale)
        self._policy = values.evolve(self._policy, timing=timing)
        spec = values.evolve(
            self._spec,
            heartbeat_interval=self._policy.heartbeat_interval,
            timing=timing,
        )
        controller = RingController(
            current, groups, self._policy, MemberProtocol(spec), model.StatusCounter()
        )
        controller.start()
        self._controller = controller

    def join(self, timeout: float | None = None) -> list[Any] | None:
        """Wait for the end of the ring.

        Args:
            timeout: most seconds to wait; no limit by default.

        Returns:
            the results, by rank; None after ``timeout``.

        Raises:
            RingError: a member failed.
        """
        controller = self._started()
        if not controller.outcome.wait(timeout):
            return None
        if self._policy.clean is Clean.ALL and self._policy.ttl is None:
            timing = self._policy.timing
            controller.wait_closed(timing.heartbeat + timing.end)
        failure = controller.outcome.failure
        if failure is not None:
            error = RingError(f"{self.name} failed: {failure}", failure=failure)
            raise error from failure.error
        return controller.outcome.results()

    def terminate(self) -> None:
        """End all members now; clean up what a ring that is over has kept. Idempotent."""
        if self._controller is not None:
            self._controller.request(events.TerminateRequested())

    def suspend(self) -> None:
        """End the members until :meth:`resume`; their last committed state is kept."""
        self._started().request(events.SuspendRequested())

    def resume(self) -> None:
        """Start the members again after :meth:`suspend`."""
        self._started().request(events.ResumeRequested())

    def resize(self, processes: int) -> None:
        """Change the number of jobs; all ranks restart, unless the ring is live.

        Raises:
            ValueError: the number is less than ``min`` or more than ``max``.
        """
        self._started().request(events.ResizeRequested(processes))

    def status(self) -> RingStatus:
        """Return a snapshot: phase, conditions, events, placements, restarts.

        Raises:
            FiberError: the ring has not been started.
        """
        return self._started().status()

    def wait_for(
        self, condition: Callable[[RingStatus], bool], timeout: float | None = None
    ) -> bool:
        """Wait until a condition holds for the status, the ring is over, or time has run out.

        Args:
            condition: called with each status.
            timeout: most seconds to wait; no limit by default.

        Returns:
            whether the condition holds.
        """
        return self._started().outcome.wait_for(condition, timeout)

    def __repr__(self) -> str:
        phase = "new" if self._controller is None else self._controller.status().phase.value
        return f"<{type(self).__name__} {self.name!r}, {phase}>"

    def _started(self) -> RingController:
        if self._controller is None:
            msg = f"{self.name} has not been started; call start() or run()"
            raise FiberError(msg)
        return self._controller

    def _resolved_groups(self) -> list[Group]:
        """Return the groups, with the settings' defaults for missing resources."""
        current = runtime.current()
        return [
            values.evolve(group, resources=requested(group.resources, current))
            for group in self._groups
        ]

    def _with_caller(self) -> list[Group]:
        first, *others = self._resolved_groups()
        if first.slots != 1:
            msg = "a ring that its caller is a member of has one rank in its first job"
            raise ValueError(msg)
        caller = Group(workers=1, is_caller=True)
        rest = [values.evolve(first, workers=first.workers - 1)] if first.workers > 1 else []
        return [caller, *rest, *others]


def parse_groups(processes: Any, func: Callable[..., Any], slots: int) -> list[Group]:
    """Convert the user's ``processes`` to groups.

    Args:
        processes: a number of jobs, or pairs of a number and ``fiber.meta(…)``.
        func: function whose ``@fiber.meta`` has the defaults of the pairs.
        slots: ranks of a job whose hints have no number.

    Raises:
        TypeError: ``processes`` is neither.
        ValueError: a number is below 1.
    """
    own = hints.get_meta(func)
    _check_count("slots", slots)
    if isinstance(processes, int):
        return [_group(processes, own, slots)]
    if isinstance(processes, (str, bytes)) or not isinstance(processes, Sequence):
        msg = f"processes must be a number or a list of groups, got {processes!r}"
        raise TypeError(msg)
    found = []
    for pair in processes:
        try:
            count, hint = pair
        except (TypeError, ValueError) as error:
            msg = f"a group must be a pair (number, fiber.meta(…)), got {pair!r}"
            raise TypeError(msg) from error
        found.append(_group(count, own.merged(_to_meta(hint)), slots))
    if not found:
        msg = "a ring needs at least one group"
        raise ValueError(msg)
    return found


def _to_meta(hint: Any) -> hints.Meta:
    if isinstance(hint, hints.Meta):
        return hint
    if not callable(hint):
        msg = f"a group's needs must be fiber.meta(…), got {hint!r}"
        raise TypeError(msg)

    def bare() -> None:
        """Carries the hints."""

    hint(bare)
    return hints.get_meta(bare)


def _group(count: Any, meta: hints.Meta, slots: int) -> Group:
    _check_count("processes", count)
    return Group(
        workers=count,
        slots=meta.slots if meta.slots is not None else slots,
        resources=meta.resources,
        image=meta.image,
    )


def _check_callable(what: str, value: Any) -> None:
    if not callable(value):
        msg = f"{what} must be callable, got {value!r}"
        raise TypeError(msg)


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{what} must be a whole number, got {value!r}"
        raise TypeError(msg)
    if value < 1:
        msg = f"{what} must be at least 1, got {value!r}"
        raise ValueError(msg)


def _parse_framework(framework: Any, *, open_ports: bool) -> RingFramework | None:
    found = find_framework(framework)
    if found is not None and found.open_servers:
        risk = f"whoever reaches {found.open_servers} over the network is asked for no key"
        if not open_ports:
            msg = (
                f"framework {found.name!r}: {risk}. Where only the members reach their network, say "
                "open_ports=True (--open-ports)"
            )
            raise ValueError(msg)
        log.warning("fiber: framework %r: %s", found.name, risk)
    return found


def _parse_clean(value: str) -> Clean:
    try:
        return Clean(value)
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in Clean)
        msg = f"clean must be one of {known}, got {value!r}"
        raise ValueError(msg) from error
