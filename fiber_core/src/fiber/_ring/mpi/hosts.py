"""Members as MPI's hosts: host files, and the expected host of each rank."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from fiber._base import values
from fiber.exceptions import FiberError

__all__ = [
    "MpiHost",
    "discover_script",
    "expected_hosts",
    "hostfile",
    "mismatches",
    "own_addresses",
]

#: ranks that one message lists
_MAX_NAMED = 8


@values.frozen
class MpiHost:
    """A member, as a host of ``mpirun``."""

    #: name of the member, without dots
    name: str
    #: most ranks on it
    slots: int = values.field(default=1, validator=values.ge(1))


def hostfile(
    hosts: Sequence[MpiHost], *, open_mpi: bool, addresses: Mapping[str, str] | None = None
) -> str:
    """Return a host file in Open MPI's syntax, or in that of Hydra (MPICH and Intel MPI).

    Args:
        hosts: hosts in the order of their ranks.
        open_mpi: True for Open MPI's syntax.
        addresses: addresses to write in place of names, by name.
    """
    form = "{} slots={}\n" if open_mpi else "{}:{}\n"
    names = addresses or {}
    return "".join(form.format(names.get(host.name, host.name), host.slots) for host in hosts)


def own_addresses(hosts: Sequence[MpiHost], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each host that shares it with no other one, by name.

    Hydra resolves each name to find out whether it is its own host. No name server knows our names,
    and one that does not answer costs 10 s a host, so addresses are better. A member on the
    launcher's host must stay a name, or Hydra would start its ranks without our agent.

    Args:
        hosts: the members.
        addresses: addresses of the members and the launcher, by name.
    """
    taken = list(addresses.values())
    return {
        host.name: addresses[host.name]
        for host in hosts
        if host.name in addresses and taken.count(addresses[host.name]) == 1
    }


def discover_script(hosts: Sequence[MpiHost]) -> str:
    """Return a host discovery script for elastic launchers: prints ``host:slots`` lines."""
    lines = [f"echo {shlex.quote(f'{host.name}:{host.slots}')}" for host in hosts]
    return "\n".join(["#!/bin/sh", *lines, ""])


def expected_hosts(count: int, hosts: Sequence[MpiHost]) -> tuple[str, ...]:
    """Return the host of each rank where hosts are filled one after another.

    Args:
        count: number of ranks.
        hosts: hosts in the order of the host file.

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
    found: Mapping[int, str], count: int, hosts: Sequence[MpiHost], *, strict: bool = True
) -> list[str]:
    """Compare the hosts of ranks with the expected ones; returns a sentence for each difference.

    Args:
        found: host of each rank that has started.
        count: expected number of ranks.
        hosts: hosts in the order of the host file.
        strict: True where hosts are filled one after another; False where ranks may be on any host
            that has a free slot.
    """
    names = {host.name for host in hosts}
    wrong = []
    if missing := sorted(set(range(count)) - set(found)):
        wrong.append(f"{_ranks(missing)} never began on a member")
    if surplus := sorted(set(found) - set(range(count))):
        wrong.append(f"{_ranks(surplus)} not asked for")
    if strangers := sorted(rank for rank, host in found.items() if host not in names):
        where = ", ".join(sorted({found[rank] for rank in strangers}))
        wrong.append(f"{_ranks(strangers)} began on {where}, which is no member")
    if wrong:
        return wrong
    if strict:
        expected = expected_hosts(count, hosts)
        return [
            f"rank {rank} began on {found[rank]} and belongs on {host}"
            for rank, host in enumerate(expected)
            if found[rank] != host
        ][:_MAX_NAMED]
    full = {host.name: host.slots for host in hosts}
    for host in found.values():
        full[host] -= 1
    return [f"{name} has {-left} ranks too many" for name, left in full.items() if left < 0]


def _ranks(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
    return f"rank {listed}" if len(numbers) == 1 else f"ranks {listed}{more}"
