"""Folder of a run on this host: its place, its description, its owner, and the sweep of stale ones; notes of processes in it.

It holds the sockets of the run's processes, the journal and logs of its supervisor, ``run.json``, and records
of the run's named shared memory. A block of ``fiber.shared_memory`` has a name in the system and outlives all
processes that map it. The standard library has a process beside each program that unlinks what is left, and that
children share with their parent. Here a file in the run's folder records each block, and whoever removes the
folder unlinks the blocks first: the master at its end, its supervisor if it was killed, or the next
sweep.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fiber._base.limits import explained
from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Claim, liveness_of, remove_claimed
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    import mmap

#: a Unix socket's path must stay below this, whatever the system
MAX_SOCKET_PATH = 100
#: longest path of the folder of all runs: leaves room for /<8 hex>/<16 characters>.sock
_MAX_ROOT = MAX_SOCKET_PATH - 32
_DESCRIPTION = "run.json"
#: variable of a program that ``fiber run`` has started: the run that its job belongs to
OUTER_VARIABLE = "FIBER_RUN"
#: length of a run folder's path up to which folders inside can hold sockets
_ROOMY = 40
#: of the runs that this process began
_claims: dict[Path, Claim] = {}


def run_root() -> Path:
    """The folder that holds the runs of this user on this host; made where it is missing.

    ``$XDG_RUNTIME_DIR/fiber``, else ``fiber-<uid>`` in the temporary folder, where any user may have
    taken that name first: then a folder that a file in ``~/.cache/fiber`` names.

    Raises:
        FiberError: it belongs to another user, or others may write to it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "fiber" if runtime and _is_writable(runtime) else None
    root = own or _temporary()
    if len(os.fsencode(root)) > _MAX_ROOT:
        root = Path("/tmp") / f"fiber-{os.getuid()}"  # noqa: S108 - owner and mode are checked below
    try:
        root.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if root != own and not _is_ours(root):
            root = _other_root(root)
    except OSError as error:
        raise _unusable(root, error) from error
    return _checked(root)


def _unusable(folder: Path, error: OSError) -> FiberError:
    msg = (
        f"{folder} cannot be made or written to: {explained(error)}; make room there, or set "
        "XDG_RUNTIME_DIR to a folder of yours on another file system"
    )
    return FiberError(msg)


def _temporary() -> Path:
    folder = "/tmp"  # noqa: S108 - owner and mode are checked
    names = {"TMPDIR", "TEMP", "TMP"}
    # this is its answer as a rule, and to import it takes 3 ms
    if "tempfile" in sys.modules or not names.isdisjoint(os.environ) or not _is_writable(folder):
        import tempfile

        try:
            folder = tempfile.gettempdir()
        except FileNotFoundError as error:
            # none of several is writable: it names them
            msg = f"{error.strerror}; make room in one, or set XDG_RUNTIME_DIR to a folder of yours"
            raise FiberError(msg) from error
    return Path(folder) / f"fiber-{os.getuid()}"


def _is_writable(folder: str) -> bool:
    # asked so, as one in a folder that is closed to this user is none either
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)  # noqa: PTH112


def _other_root(taken: Path) -> Path:
    """Return the folder in place of one that another user took; the given one where none can be.

    A file in the home folder names it, so that all commands on this host use the same one.
    """
    import tempfile

    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fiber"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        # homes are shared by hosts, temporary folders are not
        with (cache / f"runs-{os.uname().nodename}").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            named = file.read()
            folder = Path(named)
            if not named or not _is_ours(folder):
                room = len(os.fsencode(taken)) + len(".12345678") <= _MAX_ROOT
                parent = taken.parent if room else "/tmp"  # noqa: S108 - a folder of its own
                folder = Path(tempfile.mkdtemp(prefix=f"{taken.name}.", dir=parent))
                file.truncate(0)
                file.write(str(folder))
    except (OSError, RuntimeError):
        # there is no home folder, or nothing can be written to it
        return taken
    return folder


def _is_ours(folder: Path) -> bool:
    """True for a folder, and no link to one, of this user."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _checked(folder: Path) -> Path:
    """Return a folder that is this user's alone.

    Raises:
        FiberError: it is not.
    """
    if not _is_ours(folder):
        msg = f"{folder} is not a folder of user {os.getuid()}; remove it or set XDG_RUNTIME_DIR"
        raise FiberError(msg)
    if stat.S_IMODE(folder.lstat().st_mode) & 0o077:
        msg = f"{folder} is open to other users; run chmod 700 {folder}"
        raise FiberError(msg)
    return folder


def create(
    run_id: str,
    backend: str,
    *,
    detached: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Path:
    """Make the folder of a new run, described in its ``run.json``, and sweep stale ones.

    Args:
        run_id: the run.
        backend: canonical name of its backend.
        detached: True where its jobs outlive this process; :func:`sweep` leaves it alone then.
        settings: settings that another command needs to find its platform again.

    Raises:
        FiberError: it cannot be made or written to; the words say why, and what helps.
    """
    sweep()
    folder = run_root() / run_id
    description = {
        "run_id": run_id,
        "pid": os.getpid(),
        "backend": backend,
        "program": list(map(str, sys.argv)),
        "created": time.time(),
        "detached": detached,
        "settings": dict(settings or {}),
        "outer": os.environ.get(OUTER_VARIABLE, ""),
    }
    try:
        folder.mkdir(mode=0o700)
        _claims[folder] = Claim(folder)
        (folder / _DESCRIPTION).write_text(json.dumps(description))
    except FileExistsError:
        raise
    except OSError as error:
        # nobody would sweep it
        remove(folder)
        raise _unusable(folder, error) from error
    return folder


def describe(folder: Path) -> dict[str, Any] | None:
    """Content of a run's ``run.json``; None where it is missing or unreadable."""
    try:
        data = json.loads((folder / _DESCRIPTION).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def runs() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The runs of this user on this host with their descriptions, oldest first."""
    found = []
    for folder in run_root().iterdir():
        description = describe(folder)
        if description is not None:
            found.append((float(description.get("created", 0)), folder, description))
    for _, folder, description in sorted(found, key=lambda item: item[0]):
        yield folder, description


def sweep() -> list[str]:
    """Remove folders of runs whose masters are proven to be dead; return the runs' ids.

    A detached run outlives its master, and is kept until it is collected.
    """
    # also of those that were removed in part, and are described no more
    attached = [
        folder
        for folder in run_root().iterdir()
        if folder.is_dir() and not (describe(folder) or {}).get("detached")
    ]
    return [folder.name for folder in liveness.sweep(attached, liveness_of, _removed)]


def _removed(folder: Path) -> bool:
    # its supervisor may be removing it as well
    remove(folder)
    return not folder.exists()


def make_folder(run: Path | None, prefix: str) -> Path:
    """Make a private folder inside a run's, so that it is swept with the run.

    Args:
        run: the run's folder; without one, or where paths of sockets would be too long, it is made
            in the temporary folder.
        prefix: of its name.
    """
    import tempfile

    fits = run is not None and run.is_dir() and len(os.fsencode(run)) <= _ROOMY
    return Path(tempfile.mkdtemp(prefix=prefix, dir=run if fits else None))


#: ends of the names of what a process has in the folder: its socket, and where its stacks go
SOCKET, STACKS = ".sock", ".stacks"


def remove_files_of(folder: Path, name: str) -> None:
    """Remove the socket, and the file for stacks, of a process that has ended; idempotent."""
    for end in (SOCKET, STACKS):
        (folder / f"{name}{end}").unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a run's folder, and its named shared memory; idempotent."""
    unlink_blocks(folder)
    remove_claimed(folder)
    claim = _claims.pop(folder, None)
    if claim is not None:
        claim.release()


_BLOCKS = "shared_memory"


def open_block(name: str, *, create: bool = False) -> int:
    """Open a block: its descriptor.

    Raises:
        OSError: there is none; or, to create it, there is one.
    """
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    descriptor: int = _system().shm_open(f"/{name}", flags, mode=0o600)
    return descriptor


def unlink_block(name: str) -> None:
    """Unlink a block: no process can open it any more, mappings stay.

    Raises:
        OSError: there is none.
    """
    _system().shm_unlink(f"/{name}")


def create_block(run: Path, name: str) -> int:
    """Create a block that goes with its run: its descriptor.

    Raises:
        OSError: there is one of that name.
    """
    folder = run / _BLOCKS
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # two processes may try the same name: the one that fails must not remove the other's record
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / quote(name, safe="")
        is_new = not record.exists()
        # before the block, so that no moment of a process's end leaves it behind
        record.touch(mode=0o600)
        try:
            return open_block(name, create=True)
        except BaseException:
            if is_new:
                record.unlink(missing_ok=True)
            raise
    finally:
        os.close(lock)


def forget_block(run: Path, name: str) -> None:
    """Remove the record of a block that was unlinked; idempotent."""
    (run / _BLOCKS / quote(name, safe="")).unlink(missing_ok=True)


def unlink_blocks(run: str | os.PathLike[str]) -> None:
    """Unlink all blocks that have a record; processes that map them keep their mappings."""
    with contextlib.suppress(FileNotFoundError):
        for record in Path(run, _BLOCKS).iterdir():
            with contextlib.suppress(OSError):
                unlink_block(unquote(record.name))


def _system() -> Any:
    # the stdlib's, in C; imported by those who have blocks only
    import _posixshmem  # type: ignore[import-not-found] # the stubs do not have it

    return _posixshmem


#: bytes of a page of notes, each of them a slot
SLOTS = 4096


def _notes_path(folder: str, pid: int) -> str:
    return f"{folder}/{pid}.notes"


class Notes:
    """Page of what this process notes; its supervisor reads it at its end.

    A process that is killed says no more what it was at. What it notes in its page costs it a store, and is
    there after its end: the page is a file in the folder that process and supervisor have in common. The report
    of the end carries it to the parent.

    Args:
        folder: folder of the run, or of the job, on this host; None where nobody will read them.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, folder: Path | None) -> None:
        #: the slots, 0 each to begin with
        self.page = memoryview(bytearray(SLOTS) if folder is None else _shared_page(folder))
        # in turn, so that one is not used again soon
        self._free = deque(range(SLOTS))

    def take(self) -> int:
        """Take a free slot; -1 if there is none."""
        return self._free.popleft() if self._free else -1

    def free(self, slot: int) -> None:
        """Free a slot, and set it to 0."""
        self.page[slot] = 0
        self._free.append(slot)


def _shared_page(folder: Path) -> mmap.mmap:
    import mmap

    flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(_notes_path(str(folder), os.getpid()), flags, 0o600)
    try:
        # written, since a hole on a full disk would be a signal later
        os.write(descriptor, bytes(SLOTS))
        return mmap.mmap(descriptor, SLOTS)
    finally:
        os.close(descriptor)


def collect_notes(folder: str, pid: int) -> bytes | None:
    """Notes of a process that has ended, without zeros at the end; None where it has made none. Removes them."""
    path = _notes_path(folder, pid)
    try:
        # not to block, whatever the process has put there
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.read(descriptor, SLOTS)
        os.unlink(path)  # noqa: PTH108 - a word, and no object
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found.rstrip(b"\0")
