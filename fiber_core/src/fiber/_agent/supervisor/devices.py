"""Queue of jobs for the devices of one host, and the account that all runs of a user there share."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from fiber._agent.resources import Allocator
from fiber._wire.descriptors import Descriptors
from fiber.backend_parts.liveness import lock
from fiber.model import Allocation, Device

#: most jobs that are named as the holders of devices
_MOST_NAMED = 3
#: the pickled provider of one kind and the devices of it that a job got
Grant = tuple[bytes, tuple[Device, ...]]


#: variable of a job that got devices: what a run inside the job may grant again
_GRANTED = "FIBER_GRANTED_DEVICES"


class HostAccount:
    """Account of the runs of one user on one host: a lock file for each device.

    The kernel gives back what a supervisor had locked when that ends, in whatever way. The devices of
    the job that a run is inside of are accounted for by the runs in that job alone: the outer run holds
    them.

    Args:
        run_directory: folder of the run, which stands beside those of the user's other runs.
        holder: words for this run, told to others.
        descriptors: owner of the files.
        environ: of the run's program.
    """

    def __init__(
        self,
        run_directory: str,
        holder: str,
        *,
        descriptors: Descriptors,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = os.path.dirname(run_directory)  # noqa: PTH120 - imports less
        self._holder = holder.encode()
        self._descriptors = descriptors
        self._locks: dict[tuple[str, str], int] = {}
        prefix, *names = environ.get(_GRANTED, "").split(" ")
        self._granted = {name: f"{unquote(prefix)}{name}.lock" for name in names}

    def claim(self, device: Device) -> str:
        """Claim a device; returns who else has it, or "" where it is this run's now."""
        name = _name(device)
        path = self._granted.get(name)
        if path is None or not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120 - as above
            # nobody holds it for this run, or that run has ended
            path = f"{self._folder}/device-{name}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            # without an account it is granted as if this run were alone: no job waits for the folder
            return ""
        try:
            is_free = lock(descriptor)
        except OSError:
            # a file system without locks
            os.close(descriptor)
            return ""
        if not is_free:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace")
            os.close(descriptor)
            return holder or "another run"
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._holder, 0)
        self._locks[device.kind, device.id] = self._descriptors.own(descriptor)
        return ""

    def release(self, device: Device) -> None:
        """Give a device back that was claimed."""
        descriptor = self._locks.pop((device.kind, device.id), None)
        if descriptor is not None:
            # a child that was just forked may have it for a moment, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            self._descriptors.close(descriptor)


def granted_variable(
    run_directory: str, job_id: str, devices: Iterable[Device]
) -> Mapping[str, str]:
    """The variable by which runs inside a job account for the devices that the job was granted."""
    # in the run's folder, so that they are removed with it
    names = (_name(device) for device in devices)
    return {_GRANTED: " ".join((quote(f"{run_directory}/device-{job_id}-"), *names))}


def _name(device: Device) -> str:
    return f"{quote(device.kind, safe='')}-{quote(device.id, safe='')}"


class DeviceQueue:
    """Grants devices first come, first served.

    A job overtakes jobs that wait only if it needs no kind of device that they wait for. Between runs, the
    one that asks first while a device is free gets it.

    Args:
        account: the account that this run keeps with others; None where it is alone.
    """

    def __init__(self, account: HostAccount | None = None) -> None:
        self._account = account
        #: those that other runs had when this one last asked, with who had them
        self._elsewhere: dict[Device, str] = {}
        self._allocator = Allocator(())
        self._providers: dict[str, bytes] = {}
        self._waiting: OrderedDict[str, Mapping[str, int]] = OrderedDict()
        #: of jobs that hold devices or wait for some
        self._names: dict[str, str] = {}

    def offer(self, devices: Iterable[Device], providers: Mapping[str, bytes]) -> None:
        """Add the devices of some kinds; kinds that are known already stay as they are."""
        new = {kind: data for kind, data in providers.items() if kind not in self._providers}
        self._allocator.add(device for device in devices if device.kind in new)
        self._providers.update(new)

    def unknown(self, counts: Mapping[str, int]) -> list[str]:
        """Kinds that were never offered."""
        return sorted(kind for kind in counts if kind not in self._providers)

    def request(self, job_id: str, counts: Mapping[str, int], name: str = "") -> Allocation | None:
        """Request devices for a job; None: the job waits until :meth:`release` returns its grant.

        Args:
            job_id: the job.
            counts: how many by kind.
            name: that people know it by; its id if omitted.

        Raises:
            ResourceError: this host will never have that many.
        """
        blocked = any(counts.keys() & ahead.keys() for ahead in self._waiting.values())
        if blocked:
            # only whether this host has that many
            self._allocator.allocate(job_id, counts)
            self._allocator.release(job_id)
        allocation = None if blocked else self._allocate(job_id, counts)
        if allocation is None:
            self._waiting[job_id] = counts
        self._names[job_id] = name or job_id
        return allocation

    def release(self, job_id: str) -> list[Allocation]:
        """Remove a job that ran or waited; returns the grants that this makes possible."""
        self._waiting.pop(job_id, None)
        self._names.pop(job_id, None)
        self._release(self._allocator.release(job_id))
        return self.grant_waiting()

    def grant_waiting(self) -> list[Allocation]:
        """Grants that are possible now, also of devices that other runs gave back."""
        granted = []
        blocked_kinds: set[str] = set()
        for waiting, counts in tuple(self._waiting.items()):
            if not blocked_kinds & counts.keys():
                allocation = self._allocate(waiting, counts)
                if allocation is not None:
                    del self._waiting[waiting]
                    granted.append(allocation)
                    continue
            blocked_kinds |= counts.keys()
        return granted

    @property
    def awaits_others(self) -> bool:
        """True where a job waits, and other runs have devices: nobody tells when they give them back."""
        return bool(self._waiting and self._elsewhere)

    def _allocate(self, job_id: str, counts: Mapping[str, int]) -> Allocation | None:
        if self._account is None:
            return self._allocator.allocate(job_id, counts)
        for device in [device for device in self._elsewhere if device.kind in counts]:
            del self._elsewhere[device]
        while True:
            allocation = self._allocator.allocate(job_id, counts, without=self._elsewhere)
            if allocation is None:
                return None
            claimed: list[Device] = []
            for device in allocation.devices:
                holder = self._account.claim(device)
                if holder:
                    self._elsewhere[device] = holder
                    break
                claimed.append(device)
            else:
                return allocation
            # all or none, so that two runs do not wait for each other
            self._allocator.release(job_id)
            self._release(claimed)

    def _release(self, devices: Iterable[Device]) -> None:
        if self._account is not None:
            for device in devices:
                self._account.release(device)

    def grants(self, allocation: Allocation) -> tuple[Grant, ...]:
        """Devices of an allocation by kind, each with the pickled provider of that kind."""
        kinds = dict.fromkeys(device.kind for device in allocation.devices)
        return tuple((self._providers[kind], allocation.of_kind(kind)) for kind in kinds)

    def free(self) -> Mapping[str, int]:
        """Number of free devices by kind, as far as is known."""
        elsewhere = [device.kind for device in self._elsewhere]
        return {
            kind: count - elsewhere.count(kind) for kind, count in self._allocator.free().items()
        }

    def waiting(self) -> tuple[str, ...]:
        """The jobs that wait, in their order."""
        return tuple(self._waiting)

    def reason(self, job_id: str) -> str:
        """Why a job waits and who has what it waits for, a sentence for people."""
        counts = self._waiting[job_id]
        free = self.free()
        needed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        has = ", ".join(f"{free[kind]} {kind}" for kind in sorted(counts))
        # without its place in the queue, so that many that wait for the same are told of in one line
        queue = "" if next(iter(self._waiting)) == job_id else "; others wait before it"
        names = [self._names[holder] for holder in self._allocator.holders(counts)]
        others = (holder for device, holder in self._elsewhere.items() if device.kind in counts)
        names += dict.fromkeys(others)
        more = len(names) - _MOST_NAMED
        # to name all but one takes no less room
        shown = names if more <= 1 else [*names[:_MOST_NAMED], f"{more} more"]
        held = f", held by {_listed(shown)}" if shown else ""
        return f"waits for {needed}, free now: {has}{held}{queue}"


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
