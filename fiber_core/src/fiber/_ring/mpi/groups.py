"""Members of several kinds, as ``--group`` tells them: how many, and what each of them has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fiber._base import values
from fiber._config.convert import parse_cpu, parse_memory
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import Host
from fiber.model import ResourceRequest

__all__ = ["MemberGroup", "arranged", "joined", "read_group"]

_FORM = "N or N:slots=K,cpu=C,memory=MB,gpu=G"


@values.frozen(kw_only=True)
class MemberGroup:
    """Members that are alike; None means what all members have."""

    #: how many
    members: int = values.field(validator=values.ge(1))
    #: ranks that each has room for
    slots: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    cpu: float | None = values.field(default=None, validator=values.optional(values.gt(0)))
    memory: int | None = None
    gpu: int | None = values.field(default=None, validator=values.optional(values.ge(1)))


_READ: dict[str, Callable[[str], Any]] = {
    "slots": int,
    "cpu": parse_cpu,
    "memory": parse_memory,
    "gpu": int,
}


def read_group(word: str) -> MemberGroup:
    """Read a group, such as ``2:slots=4,gpu=1``.

    Raises:
        ValueError: it is none; the text tells the form.
    """
    number, _, rest = word.partition(":")
    found: dict[str, Any] = {}
    try:
        for part in filter(None, rest.split(",")):
            name, _, value = part.partition("=")
            found[name] = _READ[name](value)
        return MemberGroup(members=int(number), **found)
    except (ValueError, KeyError) as error:
        msg = f"{word!r} is no group of members, which is {_FORM}"
        raise ValueError(msg) from error


def arranged(
    groups: Sequence[MemberGroup], slots: int, common: Need
) -> tuple[tuple[Host, ...], dict[str, Need]]:
    """The members of groups in their order, and what each of them needs.

    Args:
        groups: at least one.
        slots: of members whose group says nothing.
        common: what members need whose group says nothing.
    """
    hosts: list[Host] = []
    needs: dict[str, Need] = {}
    for group in groups:
        devices = {} if group.gpu is None else {"gpu": group.gpu}
        own = ResourceRequest(cpu=group.cpu, memory=group.memory, devices=devices)
        need = joined(Need(resources=own), common)
        for _ in range(group.members):
            name = f"member-{len(hosts)}"
            hosts.append(Host(name, slots if group.slots is None else group.slots))
            needs[name] = need
    return tuple(hosts), needs


def joined(first: Need, then: Need) -> Need:
    """What one need says, and what the other says of everything else."""
    upper, lower = first.resources, then.resources
    return Need(
        resources=ResourceRequest(
            cpu=lower.cpu if upper.cpu is None else upper.cpu,
            memory=lower.memory if upper.memory is None else upper.memory,
            devices={**lower.devices, **upper.devices},
        ),
        image=then.image if first.image is None else first.image,
        volumes=first.volumes or then.volumes,
    )
