"""Rendezvous of a round: members dial each other, get addresses and ranks, and hand on state.

:func:`targets`, :func:`choose` and :func:`members` are pure; :class:`Round` is the controller's
record of one round, and :class:`Join` of a worker that joins it while it runs. Both send to
members but never wait: :mod:`fiber._ring.controller` calls them for each message. Apart from it,
so that threads and descriptors stay out of here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fiber._base import values
from fiber._ring.model import Failure, Member, Placement
from fiber._ring.protocol import (
    Address,
    Assignment,
    Hello,
    MembersChanged,
    Probe,
    ProbeResult,
    ProbeTarget,
    Ready,
    StateRequest,
)
from fiber._ring.reachability import is_loopback, reached_by_all, target_of, unreached
from fiber._ring.workers import WorkerHandle


def _candidates(hellos: Sequence[Hello], index: int, may_grow: bool) -> tuple[Address, ...]:
    """Return the addresses that others may use; loopback only where all are on one host."""
    one_host = len({hello.host.key for hello in hellos}) == 1
    found = hellos[index].addresses
    loopback = tuple(address for address in found if is_loopback(address))
    others = tuple(address for address in found if address not in loopback)
    if not one_host:
        return others
    # a member that joins later may be on another host
    return (others + loopback if may_grow else loopback + others)[:1]


def targets(
    hellos: Sequence[Hello], index: int, *, may_grow: bool = False
) -> tuple[ProbeTarget, ...]:
    """Return the members that the one at a position dials: all but itself.

    Args:
        hellos: the members' greetings, by rank.
        index: position of the member that dials.
        may_grow: True where members on other hosts may join later.
    """
    return tuple(
        target_of(other, hellos[other], _candidates(hellos, other, may_grow))
        for other in range(len(hellos))
        if other != index
    )


def choose(
    hellos: Sequence[Hello], probed: Sequence[ProbeResult], *, may_grow: bool = False
) -> tuple[Address, ...] | Failure:
    """Choose for each member the first of its addresses that all others reached, or say why there is none.

    Args:
        hellos: the members' greetings, by rank.
        probed: their probe results, by rank.
        may_grow: True where members on other hosts may join later.
    """
    chosen = []
    for index, hello in enumerate(hellos):
        others = [found for dialler, found in enumerate(probed) if dialler != index]
        found = reached_by_all(index, _candidates(hellos, index, may_grow), others)
        if not found:
            text = _unreachable(hellos, probed, index)
            return Failure(reason="Unreachable", message=text, host=hello.host.name)
        chosen.append(found[0])
    return tuple(chosen)


def _unreachable(hellos: Sequence[Hello], probed: Sequence[ProbeResult], index: int) -> str:
    there, name = hellos[index], f"member {index}"
    pairs = [
        (f"member {dialler}", hellos[dialler], name, there, found, index)
        for dialler, found in enumerate(probed)
        if dialler != index and not found.reached.get(index)
    ]
    if pairs:
        return f"{unreached(pairs)}; open the network between these hosts"
    has = ", ".join(one.ip for one in there.addresses if not is_loopback(one)) or "no address"
    return (
        f"no address of {name} ({there.host.name}) at port {there.port} is reached by all others; "
        f"it has {has}"
    )


def members(
    placements: Sequence[Placement], hellos: Sequence[Hello], chosen: Sequence[Address]
) -> tuple[Member, ...]:
    """Return the member table, by rank."""
    found = []
    for placement in placements:
        for slot, rank in enumerate(placement.ranks):
            found.append(
                Member(
                    rank=rank,
                    ip=chosen[rank].ip,
                    port=hellos[rank].port,
                    host=placement.host.name,
                    local_rank=placement.local_rank + slot,
                    local_size=placement.local_size,
                    node=placement.node,
                    nodes=placement.nodes,
                    interface=chosen[rank].interface,
                )
            )
    return tuple(found)


class Round:
    """Controller's record of one round, from its rendezvous to its results.

    Args:
        number: of the round, from 1.
        restarts: restarts of all ranks before it.
        placements: hosts and ranks of its workers.
        handles: all workers of the ring, by number.
        bounds: fewest and most ranks of a live ring; None for others.
    """

    def __init__(
        self,
        number: int,
        restarts: int,
        placements: Sequence[Placement],
        handles: Mapping[int, WorkerHandle],
        bounds: tuple[int, int] | None,
    ) -> None:
        self.number = number
        self.placements = tuple(placements)
        #: the framework's facts, from rank 0
        self.facts: Mapping[str, Any] = {}
        #: the member table, once addresses are chosen
        self.members: tuple[Member, ...] = ()
        self._restarts = restarts
        self._handles = handles
        self._bounds = bounds
        self._changes = 0
        #: workers that joined while the round ran
        self._joining: set[int] = set()
        #: chosen address of each rank
        self._chosen: tuple[Address, ...] = ()
        #: the members' greetings, by rank
        self.hellos = tuple(
            handles[placement.worker].hellos[slot]
            for placement in placements
            for slot in range(placement.slots)
        )
        self._probe_results: dict[int, ProbeResult] = {}
        self._ready: set[int] = set()
        #: worker and slot of members whose state was requested and has not come
        self._asked: set[tuple[int, int]] = set()

    def targets(self, hellos: Sequence[Hello], index: int) -> tuple[ProbeTarget, ...]:
        """Return the members that the one at a position dials."""
        return targets(hellos, index, may_grow=self._bounds is not None)

    def rank_of(self, worker: int, slot: int | None) -> int | None:
        """Return the rank of a worker's slot; None if it has none in this round."""
        for placement in self.placements:
            if placement.worker == worker and slot is not None:
                return placement.first_rank + slot
        return None

    def dial(self) -> None:
        """Send each member its targets."""
        for worker, slot, rank in self.ranks():
            worker.send_to(slot, Probe(self.targets(self.hellos, rank)))

    def add_probe_result(self, worker: int, slot: int, found: ProbeResult) -> Failure | None:
        """Add a probe result; after the last one send assignments, or return the failure."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return None
        self._probe_results[rank] = found
        if len(self._probe_results) < len(self.hellos):
            return None
        results = [self._probe_results[rank] for rank in range(len(self.hellos))]
        chosen = choose(self.hellos, results, may_grow=self._bounds is not None)
        if isinstance(chosen, Failure):
            return chosen
        self._chosen = chosen
        self.members = members(self.placements, self.hellos, chosen)
        for member, its_slot, rank in self.ranks():
            member.send_to(its_slot, self._meet(rank, is_host=rank == 0))
        return None

    def update_members(
        self, placements: Sequence[Placement], joining: Sequence[JoiningRank]
    ) -> None:
        """Assign the ranks anew and send the new member table to all members.

        Args:
            placements: the new hosts and ranks.
            joining: the ranks of the one worker that joins, if one does.
        """
        known = {
            (placement.worker, slot): (self.hellos[rank], self._chosen[rank])
            for placement in self.placements
            for slot, rank in enumerate(placement.ranks)
        }
        new = [placement.worker for placement in placements if placement.worker not in self.workers]
        known |= {
            (number, slot): (one.hello, one.address)
            for number in new
            for slot, one in enumerate(joining)
        }
        self.placements, self._changes = tuple(placements), self._changes + 1
        seats = [
            (placement.worker, slot) for placement in placements for slot in range(placement.slots)
        ]
        self.hellos = tuple(known[seat][0] for seat in seats)
        self._chosen = tuple(known[seat][1] for seat in seats)
        self.members = members(self.placements, self.hellos, self._chosen)
        for worker, slot, rank in self.ranks():
            if worker.number in new:
                worker.send_to(slot, self._meet(rank, is_host=False))
            else:
                worker.send_to(
                    slot, MembersChanged(rank=rank, members=self.members, change=self._changes)
                )
        self._joining.update(new)

    @property
    def workers(self) -> frozenset[int]:
        """Numbers of the workers that have its ranks."""
        return frozenset(placement.worker for placement in self.placements)

    def is_joining_worker(self, worker: int) -> bool:
        """Return True for a worker that joined while the round ran."""
        return worker in self._joining

    def _meet(self, rank: int, *, is_host: bool) -> Assignment:
        return Assignment(
            rank=rank,
            members=self.members,
            round=self.number,
            restarts=self._restarts,
            is_host=is_host,
            bounds=self._bounds,
            change=self._changes,
        )

    def add_ready(self, worker: int, slot: int, message: Ready) -> bool:
        """Note that a member is ready; returns True after the last one."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return False
        self._ready.add(rank)
        if rank == 0:
            self.facts = message.facts
        return len(self._ready) == len(self.hellos)

    def results(self) -> list[bytes]:
        """Return the pickled results, by rank."""
        return [worker.returned[slot] for worker, slot, _ in self.ranks()]

    def request_states(self, workers: Sequence[int]) -> None:
        """Request the committed states of some workers."""
        for number in workers:
            worker = self._handles[number]
            worker.states.clear()
            self._asked |= {(number, slot) for slot in range(worker.group.slots)}
            worker.send(StateRequest())

    def is_answered(self) -> bool:
        """Return True once, when every connected member that was asked has answered."""
        if not self._asked:
            return False
        self._asked = {
            (number, slot)
            for number, slot in self._asked
            if slot not in self._handles[number].states
            and slot not in self._handles[number].closed_slots
        }
        return not self._asked

    def newest(self) -> tuple[int, bytes] | None:
        """Return the newest state and its step, from the lowest rank if several are as new."""
        best: tuple[int, bytes] | None = None
        for worker, slot, _ in self.ranks():
            kept = worker.states.get(slot)
            if kept is not None and kept.state is not None and (not best or kept.step > best[0]):
                best = kept.step, kept.state
        return best

    def ranks(self) -> list[tuple[WorkerHandle, int, int]]:
        """Return worker, slot and rank of each member whose worker is known, by rank."""
        return [
            (self._handles[placement.worker], slot, rank)
            for placement in self.placements
            if placement.worker in self._handles
            for slot, rank in enumerate(placement.ranks)
        ]


#: most slots of a worker; target indexes are worker number times this, plus slot
_SLOTS = 1 << 16


@values.frozen
class JoiningRank:
    """A rank that joins, and the address at which the others reached it."""

    hello: Hello
    address: Address


class Join:
    """Join of one worker to the running round: members probe it and send their states.

    Args:
        current: the running round.
        worker: the worker that joins.
        handles: all workers of the ring, by number.
    """

    def __init__(
        self, current: Round, worker: WorkerHandle, handles: Mapping[int, WorkerHandle]
    ) -> None:
        self.worker = worker
        self._round = current
        self._handles = handles
        self._hellos = [worker.hellos[slot] for slot in range(worker.group.slots)]
        self._targets = tuple(self._target(slot) for slot in range(worker.group.slots))
        self._asked: set[tuple[int, int]] = set()
        self._found: dict[tuple[int, int], ProbeResult] = {}
        self._is_decided = False

    def _target(self, slot: int) -> ProbeTarget:
        """Return the target by which others dial a rank of the joining worker."""
        all_hellos = [*self._round.hellos, *self._hellos]
        position = len(self._round.hellos) + slot
        target = self._round.targets(all_hellos, 0)[position - 1]
        return values.evolve(target, index=self.worker.number * _SLOTS + slot)

    def start(self) -> None:
        """Request probes of the joining worker, and states, from all running members."""
        for worker, slot, _ in self._round.ranks():
            worker.states.pop(slot, None)
            self._asked.add((worker.number, slot))
            worker.send_to(slot, Probe(self._targets))
            worker.send_to(slot, StateRequest())

    def add_probe_result(self, worker: WorkerHandle, slot: int, found: ProbeResult) -> None:
        """Add a member's probe result; results of an earlier join are ignored."""
        if all(target.index in found.reached for target in self._targets):
            self._found[worker.number, slot] = found

    def is_answered(self) -> bool:
        """Return True once, when every connected member that was asked has answered."""
        if self._is_decided or any(self._is_waiting(*one) for one in self._asked):
            return False
        self._is_decided = True
        return True

    def _is_waiting(self, number: int, slot: int) -> bool:
        worker = self._handles[number]
        if slot in worker.closed_slots or number not in self._round.workers:
            return False
        done = slot in worker.returned or slot in worker.raised
        return not done and (slot not in worker.states or (number, slot) not in self._found)

    @property
    def joining_ranks(self) -> tuple[JoiningRank, ...]:
        """Ranks of the joining worker, each with the address that all members reached."""
        return tuple(
            JoiningRank(hello, self._reached(target, hello)[0])
            for target, hello in zip(self._targets, self._hellos, strict=True)
        )

    def failure(self) -> Failure | None:
        """Return the reason why the worker cannot join; None if it can."""
        for target, hello in zip(self._targets, self._hellos, strict=True):
            if not self._reached(target, hello):
                errors = [one.failures.get(target.index) for one in self._found.values()]
                why = next((one for one in errors if one), f"none of {', '.join(target.ips)}")
                text = f"members cannot reach {hello.host.name} at port {target.port}: {why}"
                return Failure(reason="Unreachable", message=text, host=hello.host.name)
        return None

    def _reached(self, target: ProbeTarget, hello: Hello) -> list[Address]:
        tried = [one for one in hello.addresses if one.ip in target.ips]
        return reached_by_all(target.index, tried, self._found.values())
