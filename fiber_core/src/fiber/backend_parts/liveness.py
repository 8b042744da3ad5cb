"""Liveness of owners: the one rule of all sweeps, and the proofs that it accepts.

A sweep removes what a dead owner left: folders, containers, pods, control groups. The rule is
**proof of death, never absence of news**. An owner that cannot be seen from here may be in another
container, on another host, behind a network that is cut, or stopped; what it owns is left alone. So
every question has three answers (:class:`Liveness`), and only ``DEAD`` allows removal. Three proofs
are known; ``docs/design/sweeps.md`` lists which sweep uses which:

* A **process** that was written down (:class:`Owner`) is dead where the system proves it. Process ids
  mean something within one PID namespace of one boot of one machine, so a record is judged only by
  processes for which its numbers mean the same (:func:`this_place`).
* A **lock** (:class:`Claim`) that no process holds on a file of a local file system: the kernel drops it
  with the last process that had it, in whichever PID namespace that was. Locks on network file
  systems, and in virtual machines that share a folder, prove nothing.
* A **value that its owner renews** (:class:`Observation`) and that did not change for longer than its
  owner may take, by the observer's own clock, while whatever holds the value answered all along. The
  time that was written into it proves nothing: no owner could renew it while the holder did not answer.

The module needs the standard library alone, so that it can be sent to hosts without Fiber.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import json
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from typing import NamedTuple


__all__ = [
    "OWNER_FILE",
    "Claim",
    "Liveness",
    "Observation",
    "Owner",
    "is_same",
    "liveness_of",
    "lock",
    "owner_of",
    "remove_claimed",
    "start_time",
    "sweep",
    "this_place",
]

K = TypeVar("K", bound=Hashable)

#: file of a claimed folder that names its owner, who has locked it
OWNER_FILE = "owner"
#: file systems of one kernel: a lock there is seen by all who can open the file
_LOCAL = frozenset(
    {
        *("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2"),
        *("overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"),
    }
)
_MOST = 4096
_MAX_PID = 2**31 - 1


class Liveness(enum.Enum):
    """Answer to the question whether an owner lives.

    ``ALIVE``: it does. ``DEAD``: it is proven that it does not. ``UNKNOWN``: nothing is proven from
    here; it counts as alive.
    """

    #: it does
    ALIVE = "alive"
    #: it is proven that it does not
    DEAD = "dead"
    #: nothing is proven from here; it counts as alive
    UNKNOWN = "unknown"


def sweep(
    names: Iterable[K], liveness: Callable[[K], Liveness], remove: Callable[[K], bool]
) -> list[K]:
    """Remove what belongs to owners that are proven dead; returns the names removed.

    Args:
        names: candidates.
        liveness: returns whether a candidate's owner lives.
        remove: removes a candidate; False where it could not, or another process did.
    """
    return [name for name in names if liveness(name) is Liveness.DEAD and remove(name)]


# -- processes ---------------------------------------------------------------------------------------

if sys.platform == "linux":

    def _read_start(pid: int) -> float | None:
        """When a process was started, in clock ticks since the boot; None for a zombie.

        Raises:
            OSError: it cannot be read.
        """
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            text = file.read()
        # the name, in parentheses, can hold anything
        fields = text.rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])

    def _boot() -> str:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - a word, and no object
            msg = "/proc is another PID namespace's"
            raise OSError(msg)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        # start times count from the boot as the reader's time namespace has it
        namespaces = [Path("/proc/self/ns", name) for name in ("pid", "time")]
        numbers = [str(path.stat().st_ino) for path in namespaces if path.exists()]
        return "/".join([boot, *numbers])

else:

    def _read_start(pid: int) -> float | None:
        """When a process was started, in seconds since the epoch; None for a zombie.

        Raises:
            OSError: it cannot be read.
        """
        import psutil

        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return float(process.create_time())
        except psutil.Error as error:
            raise OSError(str(error)) from error

    def _boot() -> str:
        import ctypes

        value = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(value))
        name = b"kern.bootsessionuuid"
        if ctypes.CDLL(None).sysctlbyname(name, value, ctypes.byref(size), None, 0):
            msg = "the system has no id of its boot"
            raise OSError(msg)
        return value.value.decode()


def this_place() -> str:
    """Scope of this process's process ids: host, boot and namespaces, as a string.

    Returns:
        "" where that cannot be read; then no process id proves anything.
    """
    try:
        return f"{os.uname().nodename}/{_boot()}"
    except (OSError, AttributeError, ValueError):
        return ""


def start_time(pid: int) -> float | None:
    """When a process was started, in units of the system's own.

    Returns:
        None where there is no such process, or it cannot be read; a zombie counts as none.
    """
    try:
        return _read_start(pid)
    except OSError:
        return None


def is_same(pid: int, started: float | None) -> bool:
    """True where ``pid`` is a living process of this PID namespace and was started then.

    False proves nothing; use it before signalling a process.
    """
    return started is not None and pid > 0 and start_time(pid) == started


if TYPE_CHECKING:

    class _Owner(NamedTuple):
        place: str
        pid: int
        started: float | None
        host: str = ""

else:
    # annotations are compiled when such a class is made: a millisecond of each process that starts
    _Owner = collections.namedtuple(  # noqa: PYI024 - as above
        "_Owner", ("place", "pid", "started", "host"), defaults=("",)
    )


class Owner(_Owner):
    """Record of a process, by which others find out whether it lives; a named tuple.

    Args:
        place: scope of its process id; see :func:`this_place`.
        pid: its process id there.
        started: when it was started.
        host: the host's name, for people.
    """

    __slots__ = ()

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(this_place(), pid, start_time(pid), os.uname().nodename)

    @classmethod
    def decode(cls, text: str) -> Owner | None:
        """Read a record; None where the text is none."""
        try:
            place, pid, started, host = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = isinstance(pid, int) and (started is None or isinstance(started, float))
        if not (isinstance(place, str) and numbers and isinstance(host, str)):
            return None
        return cls(place, pid, started, host)

    def encode(self) -> str:
        """Text for :meth:`decode`."""
        return json.dumps(list(self))

    @property
    def is_judged_here(self) -> bool:
        """True where its process id means the same to this process."""
        return bool(self.place) and self.place == this_place()

    def liveness(self, here: str | None = None) -> Liveness:
        """Liveness of the owner, as far as this process can prove it.

        Args:
            here: :func:`this_place`, which stays the same; it is found out where it is not given.
        """
        is_judged_here = self.is_judged_here if here is None else here and self.place == here
        if not is_judged_here or not 0 < self.pid <= _MAX_PID:
            return Liveness.UNKNOWN
        try:
            # also finds processes that a /proc with hidepid= does not show
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return Liveness.DEAD
        except OSError:
            # another user's by now; its start time shows whether it is the same process
            pass
        try:
            started = _read_start(self.pid)
        except OSError:
            return Liveness.UNKNOWN
        if started is None:
            return Liveness.DEAD
        if self.started is None:
            return Liveness.UNKNOWN
        return Liveness.ALIVE if started == self.started else Liveness.DEAD


# -- folders -----------------------------------------------------------------------------------------


class Claim:
    """Claim of a folder, which this process owns until it ends or releases it.

    The folder gets a file that names this process and is locked. Children that are forked share the
    lock; those that may outlive this process close :attr:`descriptor`.

    Args:
        folder: it must be private to this user.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder, OWNER_FILE)
        new = path.with_suffix(".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        #: descriptor of the file, which holds the lock
        self.descriptor = os.open(new, flags, 0o600)
        try:
            self._locked = False
            if _is_local(folder):
                with contextlib.suppress(OSError):
                    self._locked = lock(self.descriptor)
            self.rewrite()
            # no other process sees it before it is locked
            new.rename(path)
        except BaseException:
            os.close(self.descriptor)
            raise

    def rewrite(self) -> None:
        """Make the calling process the owner: a forked child that replaces its parent."""
        text = json.dumps({"owner": Owner.current(), "locked": self._locked}).encode()
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def release(self) -> None:
        """Release the folder. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def liveness_of(folder: str | os.PathLike[str]) -> Liveness:
    """Liveness of the owner of a claimed folder.

    Returns:
        ``UNKNOWN`` also for a folder without a claim.
    """
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(Path(folder, OWNER_FILE), flags)
    except OSError:
        return Liveness.UNKNOWN
    try:
        found = json.loads(os.read(descriptor, _MOST))
        owner, locked = Owner.decode(json.dumps(found["owner"])), found["locked"] is True
        answer = Liveness.UNKNOWN if owner is None else owner.liveness()
        # locked by the owner's own account: a file system that is local here may be remote there
        if answer is Liveness.UNKNOWN and locked and _is_local(folder):
            answer = Liveness.DEAD if lock(descriptor) else Liveness.ALIVE
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return Liveness.UNKNOWN
    else:
        return answer
    finally:
        os.close(descriptor)


def owner_of(folder: str | os.PathLike[str]) -> Owner | None:
    """Owner of a claimed folder; None for a folder without a claim."""
    try:
        found = json.loads(Path(folder, OWNER_FILE).read_text(encoding="utf-8"))
        return Owner.decode(json.dumps(found["owner"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _remove_tree(folder: Path) -> None:
    # as shutil does, which must not be imported here: see fiber._base.log of a program's end
    for _, folders, files, descriptor in os.fwalk(folder, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=descriptor)
        for name in folders:
            with contextlib.suppress(OSError):
                try:
                    os.rmdir(name, dir_fd=descriptor)
                except NotADirectoryError:
                    # a link to one
                    os.unlink(name, dir_fd=descriptor)
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_claimed(folder: str | os.PathLike[str]) -> None:
    """Remove a folder that was claimed, as far as that can be done.

    The owner file goes last: if files are left because a process still writes there, the next sweep
    knows the owner.
    """
    with contextlib.suppress(OSError):
        for path in Path(folder).iterdir():
            if path.is_dir() and not path.is_symlink():
                _remove_tree(path)
            elif path.name != OWNER_FILE:
                path.unlink(missing_ok=True)
        if {path.name for path in Path(folder).iterdir()} <= {OWNER_FILE}:
            Path(folder, OWNER_FILE).unlink(missing_ok=True)
            Path(folder).rmdir()


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False where another process has locked it.

    Raises:
        OSError: this file system has no locks.
    """
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_local(folder: str | os.PathLike[str]) -> bool:
    """True for a folder on a file system that this kernel alone has mounted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return False
    where = os.path.realpath(folder)
    longest, kind = -1, ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split(" ")[4])
        # of those at the same place the last one hides the others
        if len(point) >= longest and f"{where}/".startswith(f"{point.rstrip('/')}/"):
            longest, kind = len(point), after.partition(" ")[0]
    return kind in _LOCAL


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


# -- values that an owner renews ---------------------------------------------------------------------


class Observation(Generic[K]):
    """Time for which values did not change; pure, the clock is passed in.

    Only time counts in which the store of the values answered: a failed or late observation starts
    all of them anew, because their owners may not have been able to renew them.

    Args:
        gap: seconds between two observations at most.
    """

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._looked = float("-inf")
        self._since: dict[K, tuple[object, float]] = {}

    def looked(self, values: Mapping[K, object], now: float) -> None:
        """Note all values of one observation; others are forgotten."""
        before = self._since if now - self._looked <= self._gap else {}
        self._looked = now
        self._since = {
            key: before[key] if key in before and before[key][0] == value else (value, now)
            for key, value in values.items()
        }

    def failed(self) -> None:
        """Note that an observation failed."""
        self._since = {}

    def unchanged(self, key: K) -> float:
        """Seconds for which a value is known not to have changed; 0 for an unknown one."""
        found = self._since.get(key)
        return 0.0 if found is None else self._looked - found[1]
