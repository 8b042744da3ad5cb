"""Assigns ranks: contiguous on each host, in the order of seats."""

from __future__ import annotations

from collections.abc import Iterable

from fiber._base import values
from fiber._ring.model import Host, Placement


@values.frozen
class Seated:
    """A worker that is up, before it has ranks."""

    worker: int
    seat: int
    host: Host
    slots: int


def assign(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """The ranks of some workers, in the order of their ranks.

    Hosts come in the order of the lowest seat on them, so that seat 0 has rank 0.
    """
    return in_order(sorted(workers, key=lambda one: one.seat))


def in_order(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """The same, where hosts come in the order of the first worker on them."""
    by_host: dict[str, list[Seated]] = {}
    for worker in workers:
        by_host.setdefault(worker.host.key, []).append(worker)
    found = []
    rank = 0
    for node, here in enumerate(by_host.values()):
        local_size = sum(one.slots for one in here)
        local = 0
        for one in here:
            found.append(
                Placement(
                    worker=one.worker,
                    seat=one.seat,
                    host=one.host,
                    first_rank=rank,
                    slots=one.slots,
                    local_rank=local,
                    local_size=local_size,
                    node=node,
                    nodes=len(by_host),
                )
            )
            rank += one.slots
            local += one.slots
    return tuple(found)
