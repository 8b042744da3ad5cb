"""Locks and semaphores: the state, the owner's side, and the side of all other processes.

A lock is a semaphore of one permit. ``SemaphoreState`` is pure: each method is an event and returns
the answers to send, in order. Requests are granted first come, first served; while one waits, no
permit is free. The state counts the permits of each process, so that they can be recovered when it
dies. A permit released by a process that has none is taken off the process that has had one for
longest.

``LocalHold`` counts what one process holds and knows the thread that acquired it last; both sides
have one. ``OwnedSemaphore`` serves the threads of the owner without any message;
``RemoteSemaphore`` sends a request for each acquire and a message without answer for each release.

The permit of a lock can be *kept*: a process that alone has acquired it again and again is told to keep
it, and acquires and releases it by itself, without a message, until the owner recalls it. Events that
depend on whether the lock is free wait meanwhile for the keeper's answer. The keeper notes in a page,
which its supervisor reads should it die, whether it holds the lock (:mod:`fiber._agent.rundir`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeAlias

from fiber._base import values
from fiber._objects.address import Address, Kind
from fiber._objects.protocol import read
from fiber._objects.remote_object import Owner
from fiber._objects.sync import shared_lock
from fiber._objects.sync.hold import LocalHold, Permits
from fiber._objects.sync.protocol import (
    ACQUIRED,
    REQUEST,
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
from fiber._objects.sync.waitable import OwnedWaitable, RemoteWaitable, Reply, describe
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Message
from fiber.exceptions import LeaseLostError, PeerLostError, WireError

if TYPE_CHECKING:
    import mmap

    from fiber._launch.child import Child
    from fiber._objects.store import Store

# holder of a permit that no process acquired, or whose holder has exited
NO_PROCESS = object()
#: event of a request, which it is called with
Event: TypeAlias = Callable[[Request], Answers]
#: grants in a row after which a process is told to keep the permit with the next one
KEPT_AFTER = 2

if sys.platform == "linux":

    def clock() -> float:
        """Seconds of a clock that goes on while this machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    clock = time.monotonic


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
        #: process that keeps the permit, and may hold it or not; NO_PROCESS for none
        self.keeper: Hashable = NO_PROCESS
        #: slot in which it notes that
        self.keeper_slot = 0
        # number of the request that it was told with
        self._keeper_number = 0
        self._is_recalled = False
        # True once the keeper's answer is late: what cannot wait counts the lock as held
        self._is_late = False
        # events that wait for the keeper's answer, by process and number of their requests
        self._deferred: dict[tuple[Hashable, int], tuple[Request, Event]] = {}
        # process of the last grants, and how many those are
        self._last_process: Hashable = NO_PROCESS
        self._in_a_row = 0
        # to be sent with the answers
        self._notices: list[tuple[Hashable, Notice]] = []

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue) + len(self._deferred)

    @property
    def is_recalled(self) -> bool:
        """True where the keeper was asked to give the permit back, and has not answered yet."""
        return self._is_recalled

    def held_by(self, process: Hashable) -> int:
        """Permits that a process has."""
        return self.holds.get(process, 0)

    def take_notices(self) -> list[tuple[Hashable, Notice]]:
        """Remove and return the notices that are to be sent to processes."""
        notices, self._notices = self._notices, []
        return notices

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
        request.waits = wait
        return self._acquire(request)

    def _acquire(self, request: Request) -> Answers:
        if self.keeper is not NO_PROCESS:
            return self._defer(request, self._acquire)
        if self.value or not request.waits:
            return [self._grant(request) if self.value else Answer(request, Status.REFUSED)]
        self._queue.add(request)
        return []

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Refuse a waiting request; no answer if it was answered before, or the keeper's comes first."""
        deferred = self._deferred.get((process, number))
        if deferred is not None and expired and not self._is_late:
            # the lock may be free: the keeper knows
            deferred[0].waits = False
            return []
        self._deferred.pop((process, number), None)
        request = self._queue.remove(process, number) if deferred is None else deferred[0]
        return [] if request is None else [Answer(request, Status.REFUSED)]

    def look(self, request: Request) -> Answers:
        """Answer with the number of free permits."""
        if self.keeper is not NO_PROCESS:
            request.waits = False
            return self._defer(request, self.look)
        return [Answer(request, Status.OK, self.value)]

    # -- releasing

    def release(self, process: Hashable) -> Answers:
        """Release a permit of a process; nothing if another process released it first."""
        if not self._drop(process):
            return []
        self._end_keeping(process)
        return self._add_permit() + self._run_deferred()

    def cancel_grant(self, process: Hashable, *, inherited: bool) -> Answers:
        """Release a permit whose acquirer gave up; ``inherited`` puts its report back."""
        if inherited and self._last_report and process in self.holds:
            self._deaths.insert(0, self._last_report)
        return self.release(process)

    def release_for_other(self, request: Request) -> Answers:
        """Release a permit on behalf of whichever process holds one, which is told."""
        if self.keeper is not NO_PROCESS:
            return self._defer(request, self.release_for_other)
        if self.value >= self.maximum:
            return [Answer(request, Status.TOO_MANY)]
        holder: Hashable = NO_PROCESS
        if request.process in self.holds:
            holder = request.process
        elif self.track_holders:
            holder = next(iter(self.holds), NO_PROCESS)
        self._drop(holder)
        if holder not in (NO_PROCESS, request.process):
            self._notices.append((holder, Notice.RELEASED_BY_OTHER))
        return [Answer(request, Status.OK), *self._add_permit()]

    # -- a permit that is kept

    def confirm_held(self, process: Hashable, number: int) -> Answers:
        """The keeper holds the permit that was recalled, and will release it as any other."""
        if process != self.keeper or number != self._keeper_number:
            # it was released in the meantime
            return []
        self._in_a_row = 0
        self._end_keeping(process)
        return self._run_deferred()

    def note_lateness(self, process: Hashable, number: int) -> Answers:
        """The keeper has not answered for long: refuse what cannot wait, as if it held the lock."""
        if process != self.keeper or number != self._keeper_number:
            return []
        self._is_late = True
        late = [one for one, _ in self._deferred.values() if not one.waits]
        for one in late:
            del self._deferred[one.process, one.number]
        return [Answer(one, Status.REFUSED) for one in late]

    @property
    def keeping(self) -> tuple[Hashable, int]:
        """The keeper, and the number that tells this time from others."""
        return self.keeper, self._keeper_number

    def _defer(self, request: Request, event: Event) -> Answers:
        key = (request.process, request.number)
        if key in self._deferred:
            msg = f"a process uses number {request.number} for two requests at once"
            raise WireError(msg)
        if self._is_late and not request.waits:
            return [Answer(request, Status.REFUSED)]
        self._deferred[key] = request, event
        if not self._is_recalled:
            self._is_recalled = True
            self._notices.append((self.keeper, Notice.RECALL))
        if request.process != self.keeper:
            self._in_a_row = 0
        return []

    def _end_keeping(self, process: Hashable) -> None:
        if process == self.keeper:
            self.keeper = NO_PROCESS
            self._is_recalled = self._is_late = False

    def _run_deferred(self) -> Answers:
        """Run what has waited for the keeper's answer."""
        out: Answers = []
        # only the last one may be told to keep the permit
        while self._deferred and self.keeper is NO_PROCESS:
            request, event = self._deferred.pop(next(iter(self._deferred)))
            out += event(request)
        return out

    def _may_keep(self, request: Request) -> bool:
        return (
            request.slot >= 0
            and self.maximum == 1
            and self.recover
            and self._in_a_row > KEPT_AFTER
            and not self.waiting
        )

    # -- processes that end

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; ``held`` of its permits stay taken."""
        self.forget_requests(process)
        out: Answers = []
        # grants that were still on their way
        while self.held_by(process) > held:
            out += self.release(process)
        self.holds.pop(process, None)
        self._end_keeping(process)
        return out + self._run_deferred()

    def process_died(
        self, process: Hashable, description: str, *, was_idle: bool = False
    ) -> Answers:
        """A process died; its permits are freed where that is asked for.

        Args:
            process: the process.
            description: of it, for the next acquirer.
            was_idle: True for a keeper that is known not to have held the lock.
        """
        self.forget_requests(process)
        lost = self.holds.pop(process, 0)
        self._end_keeping(process)
        out: Answers = []
        if lost and self.recover:
            if self.report_deaths and not was_idle:
                self._deaths.append(description)
            for _ in range(lost):
                out += self._add_permit()
        return out + self._run_deferred()

    def forget_requests(self, process: Hashable) -> None:
        """Drop the waiting requests of a process that has ended."""
        self._queue.remove_all(process)
        for key in [key for key in self._deferred if key[0] == process]:
            del self._deferred[key]

    # -- inside

    def _add_hold(self, process: Hashable) -> None:
        self.value -= 1
        # reinserted: the order is that of the last acquire
        self.holds[process] = self.holds.pop(process, 0) + 1
        self._in_a_row = self._in_a_row + 1 if process == self._last_process else 1
        self._last_process = process

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
            if not self._may_keep(request):
                return Answer(request, Status.OK)
            self.keeper, self.keeper_slot = request.process, request.slot
            self._keeper_number = request.number
            return Answer(request, Status.OK, 1)
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

    def look(self, request: Request) -> Answers:
        """Answer with the number of free permits."""
        return [Answer(request, Status.OK, self._shared.value())]

    def release_for_other(self, request: Request) -> Answers:
        """Release a permit on behalf of whichever process holds one."""
        self._drop(request.process)
        try:
            self._shared.release()
        except ValueError:
            return [Answer(request, Status.TOO_MANY)]
        return [Answer(request, Status.OK)]

    def process_died(
        self, process: Hashable, description: str, *, was_idle: bool = False
    ) -> Answers:
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


class OwnedSemaphore(Permits, OwnedWaitable):
    """A lock or semaphore at its owner.

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
        # processes that may keep the permit, and children of this process among them
        self._candidates: dict[Hashable, tuple[Child, int] | None] = {}
        # what processes had noted whose connections have not ended yet, by identity
        self._noted: dict[str, bytes] = {}
        # keepers whose connection has ended, by identity, and their slots
        self._lost_keepers: dict[str, tuple[Peer, int]] = {}

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
        answer = self.request(Op.ACQUIRE, wait, timeout, rollback=self._rollback)
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
                self.deliver_answers(self._semaphore.release(None))
                return
        if self.request(Op.RELEASE_FOR_OTHER).status is Status.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def value(self) -> int:
        """Number of free permits."""
        if self._semaphore.keeper is not NO_PROCESS:
            return self.request(Op.VALUE).value
        return self._semaphore.value if self.shared is None else self.shared.value()

    def deliver_answers(self, answers: Answers) -> None:
        """Send answers and notices; what threads of this process have is counted at once."""
        self.local_hold.held = self._semaphore.held_by(None)
        for process, notice in self._semaphore.take_notices():
            self._send_notice(process, notice)
            if notice is Notice.RECALL:
                late = functools.partial(self._note_lateness, *self._semaphore.keeping)
                self._store.call_later(self._store.timing.heartbeat, late)
        super().deliver_answers(answers)

    def _rollback(self, answer: Answer) -> None:
        if answer.status in ACQUIRED:
            self.send(Op.RELEASE, answer.status is Status.OK_HOLDER_DIED)

    # -- for other processes, with the lock held

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        if op == Op.ACQUIRE:
            if argument > 1 and self._may_keep(request.process):
                request.slot = (argument >> 1) - 1
            return self._semaphore.acquire(request, wait=bool(argument & 1))
        if op == Op.RELEASE:
            return self._semaphore.cancel_grant(request.process, inherited=bool(argument))
        if op == Op.HELD:
            return self._semaphore.confirm_held(request.process, request.number)
        if op == Op.RELEASE_FOR_OTHER and self.kind is not Kind.RLOCK:
            return self._semaphore.release_for_other(request)
        if op == Op.VALUE:
            return self._semaphore.look(request)
        return None

    # -- a process that keeps the permit

    def _may_keep(self, peer: Hashable) -> bool:
        assert isinstance(peer, Peer)
        if peer.auth_domain is not None:
            return False
        if peer not in self._candidates:
            # now: it may be forgotten before its connection ends
            self._candidates[peer] = self._store.child(peer.ident)
        return True

    def _note_lateness(self, process: Hashable, number: int) -> None:
        with self.lock:
            self.deliver_answers(self._semaphore.note_lateness(process, number))

    def on_peer_lost(self, peer: Peer) -> None:
        """Note that another process died; one that kept the permit may have held it or not."""
        with self.lock:
            keeps = self._semaphore.keeper is peer
            child = self._candidates.pop(peer, None)
            noted = self._noted.pop(peer.ident, None)
            if keeps:
                self._lost_keepers[peer.ident] = peer, self._semaphore.keeper_slot
        super().on_peer_lost(peer)
        if not keeps:
            return
        if noted is not None:
            self._on_noted(peer, noted)
        elif child is not None:
            job, index = child
            job.on_process_end(index, lambda status: self._on_noted(peer, status.noted))
        # it may live: only its connection ended. It does not take what it keeps for that long
        late = functools.partial(self._on_noted, peer, None)
        self._store.call_later(self._store.timing.report, late)

    def _on_noted(self, peer: Peer, noted: bytes | None) -> None:
        with self.lock:
            self._settle_keeper(peer, noted)

    def _settle_keeper(self, peer: Peer, noted: bytes | None) -> None:
        """With the lock held: take what a lost keeper had noted, None if nobody knows; once."""
        lost = self._lost_keepers.get(peer.ident)
        if lost is not None and lost[0] is peer:
            del self._lost_keepers[peer.ident]
            was_idle = noted is not None and not any(noted[lost[1] : lost[1] + 1])
            self.deliver_answers(
                self._semaphore.process_died(peer, describe(peer), was_idle=was_idle)
            )

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op != Op.NOTED:
            super()._on_request(peer, message, op)
            return
        _, size, _ = read(REQUEST, message.body)
        text = bytes(message.body[REQUEST.size :])
        ident, noted = text[:size].decode(errors="replace"), text[size:]
        lost = self._lost_keepers.get(ident)
        if lost is not None:
            self._settle_keeper(lost[0], noted)
        elif any(isinstance(one, Peer) and one.ident == ident for one in self._candidates):
            self._noted[ident] = noted

    def _peer_died(self, peer: Peer) -> Answers:
        if self._semaphore.keeper is not peer:
            return super()._peer_died(peer)
        self._semaphore.forget_requests(peer)
        return []


@values.frozen
class _Kept:
    """The permit of a lock that this process keeps, until it is recalled or the time is over."""

    #: number of the request that got it
    number: int
    #: time of :func:`clock` until which it may be acquired here without asking the owner again
    until: float


class RemoteSemaphore(Permits, RemoteWaitable):
    """A lock or semaphore of another process.

    While this process keeps the permit, the byte in its slot of the process's notes says whether it is
    held. It is tested and changed together with ``_kept`` where the interpreter lets neither another
    thread nor a signal's handler come in: without a call, and without a jump, which Python 3.10 does so
    at, too. No thread of the user sets ``_kept`` to None: whoever does so sends the owner word of it,
    and an interrupt could come in between.
    """

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._is_recursive = address.kind is Kind.RLOCK
        #: permits that this process holds
        self.local_hold = LocalHold(self.shape.name, recursive=self._is_recursive)
        self._kept: _Kept | None = None
        is_lock = address.kind in (Kind.LOCK, Kind.RLOCK)
        # whether the owner is told, should this process die, if it held the lock
        self._can_keep = is_lock and store.is_related(address.ident)
        self._may_leave_will = is_lock and not self._can_keep and address.auth_domain is None
        # the process's notes, and the slot there; -1 for none so far
        self._page: memoryview = memoryview(bytearray(1))
        self._slot = -1
        self._requested = 0
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
        self._kept = None

    def _held(self) -> int:
        local_hold = self.local_hold if self._shared is None else self._shared.local_hold
        return local_hold.held

    # -- the user's threads

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Acquire a permit; False if none is free, or became free in time."""
        local_hold = self.local_hold
        if self._error is None and local_hold.try_reenter():
            return True
        thread, now, is_lost = threading.get_ident(), clock(), self.is_lost
        kept, page, slot = self._kept, self._page, self._slot
        # nothing comes in between from here on until it is taken
        if kept is not None and not page[slot] and not is_lost:
            if now < kept.until:
                page[slot] = 1
                local_hold.held, local_hold.thread, local_hold.depth = 1, thread, 1
                return True
            self.submit(self._give_back)
        wait = block and (timeout is None or timeout > 0)
        reply = self.request(
            Op.ACQUIRE,
            wait + 2 * (self._slot_for_request() + 1),
            timeout if wait else None,
            on_reply=functools.partial(self._count_grant, now),
            rollback=self._rollback,
        )
        if reply.status in ACQUIRED:
            local_hold.set_thread()
        if reply.text:
            self.warn(reply.status, reply.text)
        return reply.status is not Status.REFUSED

    def release(self) -> None:
        """Release a permit."""
        local_hold, thread, is_lost = self.local_hold, threading.get_ident(), self.is_lost
        page, slot = self._page, self._slot
        is_mine = local_hold.thread == thread
        is_last = not self._is_recursive or (is_mine and local_hold.depth == 1)
        is_last = is_last and not is_lost
        left = 0 if is_mine else local_hold.thread
        # nothing comes in between from here on until it is released
        if is_last and self._kept is not None and page[slot] and local_hold.held:
            local_hold.thread, local_hold.depth = left, 0
            local_hold.held = page[slot] = 0
            return
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
        page, slot = self._page, self._slot
        if self._kept is not None:
            return int(not page[slot])
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
        self._note_release()
        try:
            self.send(Op.RELEASE)
        except PeerLostError as error:
            with self._guard:
                self.local_hold.held += 1
            raise self.error_to_raise(error) from error

    def _count_grant(self, requested: float, number: int, reply: Reply) -> None:
        if reply.status not in ACQUIRED:
            return
        if reply.value and number != self.local_hold.last_grant:
            self._page[self._slot] = 1
            self._kept = _Kept(number, requested + self._store.timing.heartbeat)
        self.local_hold.count_grant(number)

    def _rollback(self, reply: Reply) -> None:
        if reply.status in ACQUIRED:
            with self._guard:
                self._kept = None
                self.local_hold.held -= 1
            self._note_release()
            self.send(Op.RELEASE, reply.status is Status.OK_HOLDER_DIED)

    # -- a permit that this process keeps

    def _slot_for_request(self) -> int:
        """Slot for the notes of a permit that the next request gets; -1 for none."""
        if (self._can_keep or self._may_leave_will) and self._slot < 0:
            self._requested += 1
            if self._requested > KEPT_AFTER and self._may_leave_will:
                self._may_leave_will = False
                self.submit(self._leave_will)
            elif self._requested > KEPT_AFTER and self._can_keep:
                notes = self._store.notes
                with self._guard:
                    if notes is not None and self._slot < 0:
                        self._page, self._slot = notes.page, notes.take()
        return self._slot

    def _leave_will(self) -> None:
        """On the owner's executor: have the owner told, which is another process than the parent."""
        ident = self._store.ident.encode()
        head = REQUEST.pack(Op.NOTED, len(ident), 0) + ident

        def then() -> None:
            self._can_keep = True

        self._store.leave_will(self._address.urls, self.target, head, then)

    def _note_release(self) -> None:
        if self._slot >= 0:
            self._page[self._slot] = 0

    def _give_back(self) -> None:
        """Give the permit back that is kept and not held; on the owner's executor."""
        page, slot = self._page, self._slot
        if self._kept is not None and not page[slot]:
            self._kept = None
            self.send(Op.RELEASE)

    def _on_recall(self) -> None:
        page, slot = self._page, self._slot
        # without one, it has been given back already
        if self._kept is not None:
            kept, is_held = self._kept, page[slot]
            self._kept = None
            # if it is held, its release is a message from now on
            op = Op.HELD if is_held else Op.RELEASE
            self.submit(functools.partial(self.send, op, 0, kept.number))

    def give_back(self) -> None:
        """This process exits: give the permit back that is kept and not held."""
        self.submit(self._give_back)

    def _close(self, end: int) -> None:
        with contextlib.suppress(PeerLostError):
            self._give_back()
        notes = self._store.notes if self._slot >= 0 else None
        if notes is not None:
            notes.free(self._slot)
            self._slot = -1

    # -- notices of the owner, and the exit of this process

    def _on_own_notice(self, notice: int) -> None:
        if notice == Notice.RELEASED_BY_OTHER:
            with self._guard:
                self.local_hold.held -= 1
            self._note_release()
        elif notice == Notice.RECALL:
            self._on_recall()

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
