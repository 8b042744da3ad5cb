"""Locks and semaphores: the state, the owner's side, and the side of all other processes.

A lock is a semaphore of one permit. ``SemaphoreState`` is pure: each method is an event and returns
the answers to send, in order. Requests are granted first come, first served; while one waits, no
permit is free. The state counts the permits of each process, so that they can be recovered when it
dies. A permit released by a process that has none is taken off the process that has had one for
longest.

``LocalHold`` counts what one process holds and knows the thread that acquired it last; both sides
have one. ``OwnedSemaphore`` serves the threads of the owner without any message;
``RemoteSemaphore`` sends a request for each acquire and a message without answer for each release.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Address, Kind
from fiber._objects.owner_connection import Owner
from fiber._objects.sync import shared_lock
from fiber._objects.sync.hold import HoldMixin, LocalHold
from fiber._objects.sync.protocol import (
    ACQUIRED,
    Answer,
    Answers,
    Notice,
    Op,
    Request,
    Status,
    Wait,
    WaitQueue,
)
from fiber._objects.sync.shared_semaphore import Outcome, SharedPermits
from fiber._objects.sync.waitable import OwnedWaitable, RemoteWaitable, Reply
from fiber.exceptions import LeaseLostError, PeerLostError

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store

# holder of a permit that no process acquired, or whose holder has exited
NO_PROCESS = object()


class SemaphoreState:
    """The state of one lock or semaphore. Not thread-safe.

    Args:
        value: permits to begin with.
        maximum: most permits that may be free at a time.
        recover: True to free the permits of a process that dies.
        track_holders: True to take a permit that a process without one releases off a holder.
        report_deaths: True to report a holder's death to the next acquirer.
        refuse_after_death: True to refuse that acquirer instead of granting the permit.
    """

    def __init__(
        self,
        value: int,
        maximum: int,
        *,
        recover: bool = True,
        track_holders: bool = True,
        report_deaths: bool = True,
        refuse_after_death: bool = False,
    ) -> None:
        #: free permits
        self.value = value
        #: most that may be free
        self.maximum = maximum
        #: permits by process, in the order of their last acquire
        self.holds: dict[Hashable, int] = {}
        #: as the arguments
        self.recover, self.track_holders = recover, track_holders
        self.report_deaths, self.refuse_after_death = report_deaths, refuse_after_death
        self._queue = WaitQueue()
        # dead holders that were not reported yet
        self._deaths: list[str] = []
        # text of the last report
        self._last_report = ""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def held_by(self, process: Hashable) -> int:
        """Permits that a process has."""
        return self.holds.get(process, 0)

    # -- acquiring

    def try_acquire(self, process: Hashable) -> bool:
        """Acquire a permit if one is free and no death is to be reported; False otherwise."""
        if not self.value or self._deaths:
            return False
        self._add_hold(process)
        return True

    def acquire(self, request: Request, *, wait: bool) -> Answers:
        """Acquire a permit; with ``wait``, be answered once there is one.

        Raises:
            WireError: its process has another request of that number.
        """
        if self.value or not wait:
            return [self._grant(request) if self.value else Answer(request, Status.REFUSED)]
        self._queue.add(request)
        return []

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Refuse a waiting request; no answer if it was answered before."""
        request = self._queue.remove(process, number)
        return [] if request is None else [Answer(request, Status.REFUSED)]

    # -- releasing

    def release(self, process: Hashable) -> Answers:
        """Release a permit of a process; nothing if another process released it first."""
        if not self._drop(process):
            return []
        return self._add_permit()

    def cancel_grant(self, process: Hashable, *, inherited: bool) -> Answers:
        """Release a permit whose acquirer gave up; ``inherited`` puts its report back."""
        if inherited and self._last_report and process in self.holds:
            self._deaths.insert(0, self._last_report)
        return self.release(process)

    def release_for_other(self, request: Request) -> tuple[list[Hashable], Answers]:
        """Release a permit on behalf of whichever process holds one.

        Returns:
            The other process that no longer has it, if there is one; the answers.
        """
        if self.value >= self.maximum:
            return [], [Answer(request, Status.TOO_MANY)]
        holder: Hashable = NO_PROCESS
        if request.process in self.holds:
            holder = request.process
        elif self.track_holders:
            holder = next(iter(self.holds), NO_PROCESS)
        self._drop(holder)
        former_holders = [holder] if holder not in (NO_PROCESS, request.process) else []
        return former_holders, [Answer(request, Status.OK), *self._add_permit()]

    # -- processes that end

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; ``held`` of its permits stay taken."""
        self._queue.remove_all(process)
        out: Answers = []
        # grants that were still on their way
        while self.held_by(process) > held:
            out += self.release(process)
        self.holds.pop(process, None)
        return out

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died; its permits are freed where that is asked for."""
        self._queue.remove_all(process)
        lost = self.holds.pop(process, 0)
        if not lost or not self.recover:
            return []
        if self.report_deaths:
            self._deaths.append(description)
        out: Answers = []
        for _ in range(lost):
            out += self._add_permit()
        return out

    # -- inside

    def _add_hold(self, process: Hashable) -> None:
        self.value -= 1
        # reinserted: the order is that of the last acquire
        self.holds[process] = self.holds.pop(process, 0) + 1

    def _drop(self, process: Hashable) -> bool:
        held = self.holds.get(process, 0)
        if held > 1:
            self.holds[process] = held - 1
        elif held:
            del self.holds[process]
        return bool(held)

    def _add_permit(self) -> Answers:
        self.value += 1
        out: Answers = []
        while self.value and len(self._queue):
            out.append(self._grant(self._queue.first()))
        return out

    def _grant(self, request: Request) -> Answer:
        if not self._deaths:
            self._add_hold(request.process)
            return Answer(request, Status.OK)
        description = self._last_report = ", ".join(self._deaths)
        self._deaths.clear()
        if self.refuse_after_death:
            return Answer(request, Status.REFUSED_HOLDER_DIED, text=description)
        self._add_hold(request.process)
        return Answer(request, Status.OK_HOLDER_DIED, text=description)


class PeersSemaphoreState(SemaphoreState):
    """Owner side of a semaphore in shared memory, for processes that do not map it.

    The owner acquires for them. They wait in order; a thread of the owner waits with the others.

    Args:
        state: the semaphore's beginning.
        shared: the semaphore, as the owner uses it for others.
        start: has a thread call a function that waits; called when a request has to.
    """

    def __init__(
        self,
        state: SemaphoreState,
        shared: SharedPermits,
        start: Callable[[Wait], object],
    ) -> None:
        super().__init__(0, state.maximum, recover=state.recover)
        self._shared = shared
        self._start = start

    def acquire(self, request: Request, *, wait: bool) -> Answers:
        """Acquire a permit; with ``wait``, be answered once there is one."""
        if not len(self._queue):
            outcome = self._shared.wait_for_permit(0)
            if outcome[0] is not Status.REFUSED:
                return [self._answer(request, outcome)]
        if not wait:
            return [Answer(request, Status.REFUSED)]
        self._queue.add(request)
        self._start(self._wait)
        return []

    def _wait(self, seconds: float) -> Callable[[], Answers]:
        return functools.partial(self._answers, self._shared.wait_for_permit(seconds))

    def _answers(self, outcome: Outcome) -> Answers:
        """Answer the first request with what a thread got for it."""
        if outcome[0] is Status.REFUSED:
            return []
        if len(self._queue):
            return [self._answer(self._queue.first(), outcome)]
        # nobody waits any more
        if outcome[1]:
            self._shared.report_again(outcome[1])
        if outcome[0] in ACQUIRED:
            self._shared.release()
        return []

    def release(self, process: Hashable) -> Answers:
        """Release a permit of a process; nothing if another process released it first."""
        self._forget_released()
        if self._drop(process):
            # one that maps the memory may have released it, without a word to anybody
            with contextlib.suppress(ValueError):
                self._shared.release()
        return []

    def cancel_grant(self, process: Hashable, *, inherited: bool) -> Answers:
        """Release a permit whose acquirer gave up; ``inherited`` puts its report back."""
        if inherited and self._last_report and process in self.holds:
            self._shared.report_again(self._last_report)
        return self.release(process)

    def release_for_other(self, request: Request) -> tuple[list[Hashable], Answers]:
        """Release a permit on behalf of whichever process holds one."""
        self._drop(request.process)
        try:
            self._shared.release()
        except ValueError:
            return [], [Answer(request, Status.TOO_MANY)]
        return [], [Answer(request, Status.OK)]

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died; its permits are freed where that is asked for."""
        self._queue.remove_all(process)
        self._forget_released()
        lost = self.holds.pop(process, 0)
        if lost and self.recover:
            self._shared.recover(lost, description)
        return []

    def _answer(self, request: Request, outcome: Outcome) -> Answer:
        status, text, _ = outcome
        self._last_report = text or self._last_report
        if status in ACQUIRED:
            self._add_hold(request.process)
            self._forget_released()
        return Answer(request, status, text=text)

    def _forget_released(self) -> None:
        """Forget what processes that map the memory have released for others: what was held for longest."""
        while sum(self.holds.values()) > self._shared.local_hold.held:
            self._drop(next(iter(self.holds)))


class OwnedSemaphore(HoldMixin, OwnedWaitable):
    """A lock or semaphore at its owner; see :class:`~fiber.synchronize.SemaphoreObject`.

    Args:
        store: of this process.
        kind: its kind.
        state: to begin with.
        is_shared: True to have the state in memory that the processes of this host share.

    Raises:
        OSError: there is no room for that.
    """

    def __init__(
        self, store: Store, kind: Kind, state: SemaphoreState, *, is_shared: bool = False
    ) -> None:
        super().__init__(store, kind, state)
        if is_shared:
            self.shared = self._share(state)
            others = self.shared.for_others()
            self._state = state = PeersSemaphoreState(state, others, self._wait_for_others)
        self._semaphore = state
        #: permits that this process holds
        self.local_hold = LocalHold(self.shape.name, recursive=kind is Kind.RLOCK)

    def _share(self, state: SemaphoreState) -> SharedPermits:
        return shared_lock.make(self._allocate, self.kind, state, host=self._store.host)

    # -- for threads here

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Acquire a permit; False if none is free, or became free in time."""
        local_hold = self.local_hold
        if local_hold.try_reenter():
            return True
        with self.lock:
            if self._semaphore.try_acquire(None):
                local_hold.held += 1
                local_hold.set_thread()
                return True
        wait = block and (timeout is None or timeout > 0)
        answer = self.request(
            functools.partial(self._semaphore.acquire, wait=wait), timeout, self._rollback
        )
        if answer.status in ACQUIRED:
            local_hold.set_thread()
        if answer.text:
            self.warn(answer.status, answer.text)
        return answer.status is not Status.REFUSED

    def release(self) -> None:
        """Release a permit."""
        local_hold = self.local_hold
        if not local_hold.count_release():
            return
        with self.lock:
            if local_hold.held > 0:
                local_hold.held -= 1
                self.deliver_answers(self._semaphore.release(None))
                return
            outcome, *others = self._release_for_other(Request(None))
            self.deliver_answers(others)
        if outcome.status is Status.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Do nothing: the owner cannot be lost to itself."""

    def value(self) -> int:
        """Number of free permits."""
        return self._semaphore.value if self.shared is None else self.shared.value()

    def deliver_answers(self, answers: Answers) -> None:
        """Send answers; grants to threads of this process are counted at once."""
        self.local_hold.held += sum(
            one.request.process is None and one.status in ACQUIRED for one in answers
        )
        super().deliver_answers(answers)

    def _rollback(self, answer: Answer) -> Answers:
        if answer.status not in ACQUIRED:
            return []
        self.local_hold.held -= 1
        return self._semaphore.cancel_grant(None, inherited=answer.status is Status.OK_HOLDER_DIED)

    # -- for threads here and other processes, with the lock held

    def _release_for_other(self, request: Request) -> Answers:
        former_holders, answers = self._semaphore.release_for_other(request)
        for former_holder in former_holders:
            self._on_released_for(former_holder)
        return answers

    def _on_released_for(self, former_holder: Hashable) -> None:
        if former_holder is None:
            self.local_hold.held -= 1
        else:
            self._send_notice(former_holder, Notice.RELEASED_BY_OTHER)

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        if op == Op.ACQUIRE:
            return self._semaphore.acquire(request, wait=bool(argument))
        if op == Op.RELEASE:
            return self._semaphore.cancel_grant(request.process, inherited=bool(argument))
        if op == Op.RELEASE_FOR_OTHER and self.kind is not Kind.RLOCK:
            return self._release_for_other(request)
        if op == Op.VALUE:
            return [Answer(request, Status.OK, self.value())]
        return None


class RemoteSemaphore(HoldMixin, RemoteWaitable):
    """A lock or semaphore of another process; see :class:`~fiber.synchronize.SemaphoreObject`."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        #: permits that this process holds
        self.local_hold = LocalHold(self.shape.name, recursive=address.kind is Kind.RLOCK)
        # True while it is held here although no handle is left
        self._pinned = False

    def _share(self, memory: mmap.mmap, begin: int) -> SharedPermits:
        return shared_lock.find(memory, begin, self._address.kind, host=self._store.host)

    def fail(self, error: BaseException) -> None:
        """The owner is lost: nothing is held any more, and all uses raise an error."""
        if self._error is None and self._shared is not None:
            # for the error; it may be noticed more than once
            self.local_hold.held = self._held()
        super().fail(error)

    def _held(self) -> int:
        local_hold = self.local_hold if self._shared is None else self._shared.local_hold
        return local_hold.held

    # -- the user's threads

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Acquire a permit; False if none is free, or became free in time."""
        local_hold = self.local_hold
        if self._error is None and local_hold.try_reenter():
            return True
        wait = block and (timeout is None or timeout > 0)
        limit = timeout if wait else None
        reply = self.request(
            Op.ACQUIRE, wait, limit, on_reply=self._count_grant, rollback=self._rollback
        )
        if reply.status in ACQUIRED:
            local_hold.set_thread()
        if reply.text:
            self.warn(reply.status, reply.text)
        return reply.status is not Status.REFUSED

    def release(self) -> None:
        """Release a permit."""
        local_hold = self.local_hold
        self.check()
        if not local_hold.count_release():
            return
        with self._guard:
            has_one = local_hold.held > 0
            if has_one:
                local_hold.held -= 1
        if has_one:
            self._send_release()
        elif self.request(Op.RELEASE_FOR_OTHER).status is Status.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Raise the error of an operation if the owner is lost."""
        if self._error is not None:
            raise self.error_to_raise(self._error) from self._error

    def value(self) -> int:
        """Number of free permits."""
        return self.request(Op.VALUE).value

    def error_to_raise(self, error: BaseException | None) -> PeerLostError:
        """The error for the user; a LeaseLostError where this process held a permit."""
        lost = super().error_to_raise(error)
        if self.local_hold.held <= 0:
            return lost
        msg = (
            f"the connection to the owner of this {self.shape.name} was lost while this process "
            f"held it, so others may hold it by now: {lost}"
        )
        return LeaseLostError(msg)

    def _send_release(self) -> None:
        try:
            self.send(Op.RELEASE)
        except PeerLostError as error:
            with self._guard:
                self.local_hold.held += 1
            raise self.error_to_raise(error) from error

    def _count_grant(self, number: int, reply: Reply) -> None:
        if reply.status in ACQUIRED:
            self.local_hold.count_grant(number)

    def _rollback(self, reply: Reply) -> None:
        if reply.status in ACQUIRED:
            with self._guard:
                self.local_hold.held -= 1
            self.send(Op.RELEASE, reply.status is Status.OK_HOLDER_DIED)

    # -- notices of the owner, and the exit of this process

    def _on_own_notice(self, notice: int) -> None:
        if notice == Notice.RELEASED_BY_OTHER:
            with self._guard:
                self.local_hold.held -= 1

    def on_exit(self, code: int) -> None:
        """Report a normal exit of this process: the permits that it holds stay taken."""
        if self._shared is not None and self._error is None:
            self._shared.on_exit(code)
        # one may also be on its way to a waiting thread
        if code == 0 and self._error is None and (self.local_hold.held > 0 or self._requests):
            self.submit(functools.partial(self.send, Op.ENDING, max(0, self.local_hold.held)))

    def _drop(self, end: int) -> None:
        # permits stay held without a handle, and the owner must learn how this process ends
        with self._lock:
            held = self._held() > 0
            if self._pinned and not held:
                self._pinned = False
                self._holds[end] -= 1
            elif held and not self._pinned and self._holds[end] == 1:
                self._pinned = True
                return
        super()._drop(end)
