"""Members as MPI's hosts: host files, the expected host of each rank, and networks that all have; pure.

What answers and what dials on each member is :mod:`fiber._ring.reachability`. The networks are not chosen as a
ring's addresses are, :func:`fiber._ring.rendezvous.choose`: an mpirun is told networks, and all its members
are to be in one where that is possible.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from fiber._base import values
from fiber._ring.protocol import Address, Hello, ProbeResult, ProbeTarget
from fiber._ring.reachability import is_loopback, reached_by_all, target_of, unreached
from fiber.exceptions import FiberError

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


#: most members that each one dials: its next ones, in the order of names
_MOST_DIALS = 64
#: members without an address that one message lists
_NAMED = 5


@values.frozen
class Networks:
    """Networks that the members of a run share."""

    #: address at which the others reach a member, by its name
    chosen: Mapping[str, Address]
    #: True where all members are on one host
    one_host: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The networks, as ``10.0.0.0/16``."""
        return tuple(dict.fromkeys(found.network for found in self.chosen.values()))


def probe_targets(name: str, hellos: Mapping[str, Hello]) -> tuple[ProbeTarget, ...]:
    """Return the targets of a member, by their names.

    Args:
        name: the member's.
        hellos: greetings of the members, by name, the launcher first.
    """
    return tuple(
        target_of(other, hellos[other], hellos[other].addresses)
        for other in _asked(name, list(hellos))
    )


def _asked(name: str, names: Sequence[str]) -> list[str]:
    index = names.index(name)
    # the first one is the launcher, which all members connect to
    others = [
        names[(index + step) % len(names)] for step in range(1, min(len(names), _MOST_DIALS + 1))
    ]
    if name != names[0] and names[0] not in others:
        others.append(names[0])
    return others


def choose_networks(hellos: Mapping[str, Hello], dialled: Mapping[str, ProbeResult]) -> Networks:
    """Choose networks in which all members reach each other.

    Args:
        hellos: greetings of the members, by name, the launcher first.
        dialled: results of the members' probes, by name.

    Raises:
        FiberError: two members cannot reach each other; the text has names, addresses and port.
    """
    asked = {asker: _asked(asker, list(hellos)) for asker in hellos}
    _refuse_unreached(hellos, asked, dialled)
    usable = {
        name: reached_by_all(
            name,
            up.addresses,
            [dialled[asker] for asker, names in asked.items() if asker != name and name in names],
        )
        for name, up in hellos.items()
    }
    loopback = {name: [a for a in found if is_loopback(a)] for name, found in usable.items()}
    if all(loopback.values()):
        return Networks({name: found[0] for name, found in loopback.items()}, one_host=True)
    wide = {name: [a for a in found if not is_loopback(a)] for name, found in usable.items()}
    first = next(iter(hellos))
    for candidate in wide[first]:
        within = {
            name: [a for a in found if a.network == candidate.network]
            for name, found in wide.items()
        }
        if all(within.values()):
            return Networks({name: found[0] for name, found in within.items()}, one_host=False)
    # hosts in networks of their own, with routes between them
    chosen = {name: found[0] for name, found in wide.items() if found}
    missing = [name for name in hellos if name not in chosen]
    if missing:
        msg = f"{', '.join(missing[:_NAMED])} has no address that all other members reach"
        raise FiberError(msg)
    return Networks(chosen, one_host=False)


def _refuse_unreached(
    hellos: Mapping[str, Hello],
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, ProbeResult],
) -> None:
    wrong = [
        (asker, hellos[asker], other, hellos[other], dialled[asker], other)
        for asker, names in asked.items()
        for other in names
        if not dialled[asker].reached[other]
    ]
    if wrong:
        msg = f"{unreached(wrong)}; MPI needs any port open between all members; open them, or their network"
        raise FiberError(msg)
