"""Members as MPI's hosts: their files, and the member that each rank belongs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fiber._base import values
from fiber.exceptions import FiberError

__all__ = [
    "Host",
    "discover_script",
    "expected_hosts",
    "hostfile",
    "mismatches",
    "own_addresses",
]

#: ranks that one message names
_MOST = 8


@values.frozen
class Host:
    """A member as ``mpirun`` knows it."""

    #: its name, without dots
    name: str
    #: ranks that it has room for
    slots: int = values.field(default=1, validator=values.ge(1))


def hostfile(
    hosts: Sequence[Host], *, open_mpi: bool, addresses: Mapping[str, str] | None = None
) -> str:
    """The hosts in Open MPI's syntax, or in Hydra's, which MPICH and Intel MPI share.

    Args:
        hosts: in the order of their ranks.
        open_mpi: True for Open MPI's.
        addresses: what some of them are called instead, by their names.
    """
    form = "{} slots={}\n" if open_mpi else "{}:{}\n"
    called = addresses or {}
    return "".join(form.format(called.get(host.name, host.name), host.slots) for host in hosts)


def own_addresses(hosts: Sequence[Host], addresses: Mapping[str, str]) -> dict[str, str]:
    """The addresses that one host has and nobody else, the launcher included, by its name.

    Hydra looks up each name, to know whether it is its own host, and no name server knows ours: one
    that does not answer costs 10 s a host. Where a member is on the launcher's host it has to stay
    a name, or Hydra would start its ranks without asking us.
    """
    taken = list(addresses.values())
    return {
        host.name: addresses[host.name]
        for host in hosts
        if host.name in addresses and taken.count(addresses[host.name]) == 1
    }


def discover_script(hosts: Sequence[Host]) -> str:
    """A script that prints the hosts with their slots, as elastic launchers ask for them."""
    lines = [f"echo {host.name}:{host.slots}" for host in hosts]
    return "\n".join(["#!/bin/sh", *lines, ""])


def expected_hosts(count: int, hosts: Sequence[Host]) -> tuple[str, ...]:
    """The host of each rank where hosts are filled one after another.

    Args:
        count: how many ranks there are.
        hosts: in the order of the hostfile.

    Raises:
        FiberError: there are fewer slots than ranks.
    """
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if count > len(slots):
        msg = (
            f"{count} ranks need {count} slots, and {len(hosts)} members have {len(slots)}; ask for "
            "more with --members or --slots"
        )
        raise FiberError(msg)
    return tuple(slots[:count])


def mismatches(
    found: Mapping[int, str], count: int, hosts: Sequence[Host], *, strict: bool = True
) -> list[str]:
    """What is wrong with where ranks are; one sentence for each kind of mistake.

    Args:
        found: host by rank, of the ranks that were seen.
        count: how many ranks were asked for.
        hosts: in the order of the hostfile.
        strict: True where hosts are filled one after another; otherwise ranks may be on any host
            that has room for them.
    """
    names = {host.name for host in hosts}
    wrong = []
    if missing := sorted(set(range(count)) - set(found)):
        wrong.append(f"{_ranks(missing)} never began on a member")
    if surplus := sorted(set(found) - set(range(count))):
        wrong.append(f"{_ranks(surplus)} nobody asked for")
    if strangers := sorted(rank for rank, host in found.items() if host not in names):
        where = ", ".join(sorted({found[rank] for rank in strangers}))
        wrong.append(f"{_ranks(strangers)} began on {where}, which is no member")
    if wrong:
        return wrong
    if strict:
        wanted = expected_hosts(count, hosts)
        return [
            f"rank {rank} began on {found[rank]} and belongs on {host}"
            for rank, host in enumerate(wanted)
            if found[rank] != host
        ][:_MOST]
    full = {host.name: host.slots for host in hosts}
    for host in found.values():
        full[host] -= 1
    return [f"{name} has {-left} ranks too many" for name, left in full.items() if left < 0]


def _ranks(numbers: Sequence[int]) -> str:
    told = ", ".join(map(str, numbers[:_MOST]))
    more = f" and {len(numbers) - _MOST} more" if len(numbers) > _MOST else ""
    return f"rank {told}" if len(numbers) == 1 else f"ranks {told}{more}"
