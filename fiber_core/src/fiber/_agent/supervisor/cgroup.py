"""Control groups that limit jobs, and the proof that a job ran out of memory.

:class:`Confiner` makes a group for each job that asks for a limit of memory or CPU time;
:class:`JobConfiner` of a remote job watches the container's own group instead, where there is one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fiber._base import values
from fiber._base.cgroups import Group, own_groups
from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Liveness, Owner, this_place
from fiber.model import ResourceRequest

_MB = 1 << 20
_PERIOD = 100_000
#: the kernel takes no smaller quota
_MIN_QUOTA = 1_000
_PREFIX = "fiber-"


@values.define(eq=False)
class Confinement:
    """Control groups of one job."""

    #: its groups by controller; both are one folder in version 2
    folders: dict[str, Path]
    _counted: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        """Files to which a process writes ``0`` in order to be confined."""
        return tuple(str(folder / "cgroup.procs") for folder in sorted(set(self.folders.values())))

    def ran_out_of_memory(self) -> bool:
        """True where the kernel counts one more out-of-memory kill than at the last call."""
        count = self._count_kills()
        if count > self._counted:
            self._counted += 1
            return True
        return False

    def kill(self) -> None:
        """SIGKILL to all members, also those that left their process group."""
        for folder in set(self.folders.values()):
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
                continue
            with contextlib.suppress(OSError):
                for word in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(word), signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the groups; False while a process in them has not quite ended."""
        for controller, folder in tuple(self.folders.items()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            del self.folders[controller]
        return not self.folders

    def _count_kills(self) -> int:
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        return 0


class Confiner:
    """Makes groups for jobs, below this process's own group or beside it, where that is allowed.

    Args:
        groups_of: returns the groups of this process for a controller.
        attach: whether a process can move itself to a group by writing to this file.
    """

    def __init__(
        self,
        groups_of: Callable[[str], Iterable[Group]] = own_groups,
        attach: Callable[[Path], bool] | None = None,
    ) -> None:
        self._groups_of = groups_of
        self._attach = attach or _can_attach
        self._parents: dict[str, Path | None] = {}
        self._warned: set[str] = set()

    def confine(
        self, job_id: str, request: ResourceRequest
    ) -> tuple[Confinement | None, tuple[str, ...]]:
        """Make the groups that a request needs.

        Returns:
            The groups, None where none is needed or none can be had; and sentences about limits
            that are not enforced, each returned once.
        """
        limits: dict[str, str] = {}
        if request.memory is not None:
            limits["memory"] = f"the memory limit of {request.memory} MB"
        if request.cpu is not None:
            limits["cpu"] = f"the limit of {request.cpu:g} CPUs"
        folders: dict[str, Path] = {}
        warnings = []
        for controller, limit in limits.items():
            parent = self._parent(controller)
            try:
                if parent is None:
                    msg = "no control group can be written here"
                    raise OSError(msg)
                folder = parent / f"{_prefix()}{job_id}"
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                folders[controller] = folder
                _limit(folder, controller, request)
            except OSError as error:
                if controller not in self._warned:
                    self._warned.add(controller)
                    warnings.append(f"{limit} is not enforced: {error.strerror or error}")
                unused = folders.pop(controller, None)
                if unused is not None and unused not in folders.values():
                    with contextlib.suppress(OSError):
                        unused.rmdir()
        return (Confinement(folders) if folders else None), tuple(warnings)

    def _parent(self, controller: str) -> Path | None:
        if controller not in self._parents:
            self._parents[controller] = next(self._candidates(controller), None)
        return self._parents[controller]

    def _candidates(self, controller: str) -> Iterator[Path]:
        for group in self._groups_of(controller):
            # version 2 wants no processes beside sub-groups, so there ours go beside our own group
            parents = [group.folder] if group.version == 1 else group.upwards()
            for parent in parents:
                if group.version == 2 and not _offers(parent, controller):
                    continue
                _sweep(parent)
                if self._is_usable(parent, controller):
                    yield parent

    def _is_usable(self, parent: Path, controller: str) -> bool:
        folder = parent / f"{_prefix()}probe"
        try:
            folder.mkdir()
        except OSError:
            return False
        try:
            _limit(folder, controller, ResourceRequest(cpu=1, memory=1024))
            return self._attach(folder / "cgroup.procs")
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _offers(parent: Path, controller: str) -> bool:
    """True where sub-groups of a version 2 group have the controller; enables it if need be."""
    control = parent / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if controller in control.read_text().split():
            return True
        control.write_text(f"+{controller}")
        return True
    return False


def _limit(folder: Path, controller: str, request: ResourceRequest) -> None:
    if controller == "memory" and request.memory is not None:
        size = str(request.memory * _MB)
        if (folder / "memory.max").exists():
            (folder / "memory.max").write_text(size)
            _try_write(folder / "memory.swap.max", "0")
        else:
            (folder / "memory.limit_in_bytes").write_text(size)
            _try_write(folder / "memory.memsw.limit_in_bytes", size)
    if controller == "cpu" and request.cpu is not None:
        quota = max(_MIN_QUOTA, round(request.cpu * _PERIOD))
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _try_write(path: Path, text: str) -> None:
    # systems without swap accounting have no such file, and need none
    with contextlib.suppress(OSError):
        path.write_text(text)


def _can_attach(procs: Path) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            procs.write_text("0")
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _prefix() -> str:
    """Prefix of the names of this process's groups: PID namespace (hashed) and process id."""
    place = hashlib.sha256(this_place().encode()).hexdigest()[:8]
    return f"{_PREFIX}{place}-{os.getpid()}-"


def _sweep(parent: Path) -> None:
    """Remove groups that supervisors left which are proven to be dead."""
    liveness.sweep(list(parent.glob(f"{_PREFIX}*-*-*")), _liveness_of, _removed)


def _liveness_of(folder: Path) -> Liveness:
    own, _, _ = _prefix().rpartition(f"{os.getpid()}-")
    pid, _, _ = folder.name.removeprefix(own).partition("-")
    if not folder.name.startswith(own) or not pid.isdigit():
        # of another PID namespace
        return Liveness.UNKNOWN
    return Owner(this_place(), int(pid), None).liveness()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        # there are processes in it
        return False
    return True


#: the first version of groups has a limit everywhere, of this size or more where there is none
_UNLIMITED = 1 << 60


@values.define(eq=False)
class OwnGroup(Confinement):
    """Group that the platform made for this job: watched, but not killed or removed."""

    @property
    def files(self) -> tuple[str, ...]:
        """Empty: forked processes are in the group already."""
        return ()

    def kill(self) -> None:
        """Do nothing: the supervisor itself is in the group."""

    def remove(self) -> bool:
        """Do nothing: the group is the platform's."""
        return True


class JobConfiner(Confiner):
    """Watches the container's own group where there is one, else makes groups.

    Args:
        enforce: True where the platform does not enforce limits.
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
        """Make groups as the base class does, unless the container's engine enforces limits."""
        own = self._own()
        if own is not None or not self._enforce:
            return own, ()
        return super().confine(job_id, request)

    def _own(self) -> Confinement | None:
        for group in self._own_groups("memory"):
            # what looks like the root of everything is the group of this container; on a machine
            # itself the root counts no kills, and a session's group is shared with strangers
            if group.folder == group.mount and _counts_kills(group):
                found = OwnGroup({"memory": group.folder})
                while found.ran_out_of_memory():
                    # kills before this job
                    continue
                return found
        return None


def _counts_kills(group: Group) -> bool:
    if group.version == 2:
        return (group.folder / "memory.events").exists()
    try:
        return int((group.folder / "memory.limit_in_bytes").read_text()) < _UNLIMITED
    except (OSError, ValueError):
        return False
