"""Limits of a remote job, and the proof that it ran out of memory, by control groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fiber._agent.cgroups import Group, own_groups
from fiber._agent.supervisor.cgroup import Confinement, Confiner
from fiber._base import values
from fiber.model import ResourceRequest

__all__ = ["JobConfiner", "OwnGroup"]

#: the first version of groups has a limit everywhere, of this size or more where there is none
_UNLIMITED = 1 << 60


@values.define(eq=False)
class OwnGroup(Confinement):
    """The group that the platform made for this job: watched, and left to the platform."""

    @property
    def files(self) -> tuple[str, ...]:
        """None: whoever is forked here is in it already."""
        return ()

    def kill(self) -> None:
        """Nothing: the supervisor itself is in it."""

    def remove(self) -> bool:
        """Nothing: it is the platform's."""
        return True


class JobConfiner(Confiner):
    """Watches the job's own group where it has one, else makes groups as on one machine.

    Args:
        enforce: True where nobody else enforces limits.
        groups_of: the groups of this process for a controller.
    """

    def __init__(
        self,
        *,
        enforce: bool,
        groups_of: Callable[[str], Iterable[Group]] = own_groups,
    ) -> None:
        super().__init__(groups_of)
        self._enforce = enforce
        self._own_groups = groups_of

    def confine(
        self, job_id: str, request: ResourceRequest
    ) -> tuple[Confinement | None, tuple[str, ...]]:
        """As the base class; a container's limits are its engine's affair."""
        own = self._own()
        if own is not None or not self._enforce:
            return own, ()
        return super().confine(job_id, request)

    def _own(self) -> Confinement | None:
        for group in self._own_groups("memory"):
            # what looks like the root of everything is the group of this container; on a machine
            # itself the root tells of no kills, and a session's group is shared with strangers
            if group.folder == group.mount and _tells_of_kills(group):
                found = OwnGroup({"memory": group.folder})
                while found.ran_out_of_memory():
                    # before our time
                    continue
                return found
        return None


def _tells_of_kills(group: Group) -> bool:
    if group.version == 2:
        return (group.folder / "memory.events").exists()
    try:
        return int((group.folder / "memory.limit_in_bytes").read_text()) < _UNLIMITED
    except (OSError, ValueError):
        return False
