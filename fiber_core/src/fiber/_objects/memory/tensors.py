"""Torch's tensors in shared memory: processes of this host map the memory, others are refused.

A pickle of a tensor is a copy of its storage, whatever memory that is in. For shared memory torch
has another way between processes of the standard library: descriptors that can be received once
each. Here the handle of an object travels that keeps the memory open, so any number of processes
may read the pickle, or none, and the memory lives for as long as it is on its way.

Only what Fiber carries between processes is pickled so. Pickles that the program makes itself,
values of ``fiber.shared``, results of rings and what a worker of a ``DataLoader`` sends are copies,
as are storages that cannot be mapped: on a device, of a file, or empty.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import os
import pickle
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.blocks.block import Block
from fiber._objects.handle import Handle
from fiber._objects.memory import backing
from fiber._objects.memory.backing import Place
from fiber._objects.owned import Shared
from fiber._objects.remote import Remote
from fiber._wire import codec

if TYPE_CHECKING:
    from fiber._objects.store import Store

_ADVICE = (
    "send a copy (tensor.clone(), copy.deepcopy(model)), share what is only read by fiber.shared, "
    "or use fiber.RawArray for memory that processes on all hosts read and write"
)

# device and inode, by which memory without a mark is known
_IDENTITY = struct.Struct("<QQ")

# of storages that were sent, as long as they live here
_handles: weakref.WeakKeyDictionary[Any, StorageHandle] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def register() -> bool:
    """Have storages pickled in this way; False where torch is not imported to its end yet."""
    torch: Any = sys.modules["torch"]
    if not (hasattr(torch, "UntypedStorage") and hasattr(torch, "multiprocessing")):
        # the latter is one of its last parts; one without the former is no torch that we know
        return False
    for kind in {*torch._storage_classes, torch.storage.TypedStorage}:  # noqa: SLF001 - as torch registers them
        copyreg.pickle(kind, _reduce_untyped if kind is torch.UntypedStorage else _reduce_typed)
    return True


class Storage(Shared):
    """Keeps shared memory open for those who are sent it.

    Args:
        store: of this process.
        close: lets go of the memory.
    """

    def __init__(self, store: Store, close: Callable[[], Any]) -> None:
        super().__init__(store, Kind.STORAGE)
        self._closing = weakref.finalize(self, close)
        self._closing.atexit = False

    def is_drained(self) -> bool:
        """True where nobody is about to map it."""
        with self.lock:
            return not self._references.is_awaited(0)

    def _review(self) -> None:
        super()._review()
        self._store.drained()

    def _end_closed(self, end: int) -> None:
        self._closing()


class StorageHandle(Handle):
    """Travels in place of a storage; where that is, it lives as long as the storage does."""

    _object: Storage | Remote
    _place: tuple[Any, ...]
    _store: Store

    @classmethod
    def of(cls, storage: Any) -> StorageHandle | None:
        """The handle of a storage in shared memory; None where others cannot map that."""
        current = store.current()
        with _making:
            found = _handles.get(storage)
            if found is None or not found.is_of(current):
                lent = _lend(storage)
                if lent is None:
                    return None
                place, close = lent
                made = Storage(current, close)
                made.hold(0)
                found = _handles[storage] = cls.__new__(cls)
                found._restore(_host(), *place)  # noqa: SLF001 - its own
                found._take_hold(made, 0)  # noqa: SLF001 - its own
            return found

    def is_of(self, store: Store) -> bool:
        """True where it was made or read by this store's process."""
        return self._store is store

    def storage(self) -> Any:
        """The storage: the same object for all that this process has of it.

        Raises:
            PeerLostError: the process that sent it is gone.
            UnpicklingError: its memory is not to be had here.
        """
        host, *place = self._place
        if host == _host():
            found = _find(*place)
            if found is not None:
                return found
            if isinstance(self._object, Remote) and self._object.is_lost:
                raise self._object.owner.lost(self._object.shape.name)
        msg = (
            f"a tensor in shared memory of process {self._object.address.ident} cannot be mapped "
            f"here: the memory is of another host or container, or the process ended; {_ADVICE}"
        )
        raise pickle.UnpicklingError(msg)

    def _open(self) -> None:
        self._store = store.current()

    def _state(self) -> tuple[Any, ...]:
        return self._place

    def _restore(self, *place: Any) -> None:
        self._place = place


def _reduce_untyped(storage: Any) -> Any:
    handle = _handle_of(storage)
    return storage.__reduce__() if handle is None else (StorageHandle.storage, (handle,))


def _reduce_typed(storage: Any) -> Any:
    if _handle_of(storage._untyped_storage) is None:  # noqa: SLF001 - as torch reduces it
        return storage.__reduce__()
    reductions = _reductions()
    if type(storage) is reductions.torch.storage.TypedStorage:
        return reductions.reduce_typed_storage(storage)
    return reductions.reduce_typed_storage_child(storage)


def _handle_of(storage: Any) -> StorageHandle | None:
    """What travels in place of a storage; None for a copy.

    Raises:
        PicklingError: those who get it may be on other hosts.
    """
    carrier = codec.carrier()
    if carrier is None or isinstance(carrier, Block) or not _is_to_map(storage):
        return None
    handle = StorageHandle.of(storage)
    if handle is None:
        return None
    backend = store.current().node.info
    if not backend.capabilities.same_host:
        msg = (
            f"a tensor in shared memory cannot be sent with the backend {backend.name!r}: its "
            f"processes may be on other hosts, which do not have that memory; {_ADVICE}"
        )
        raise pickle.PicklingError(msg)
    return handle


def _is_to_map(storage: Any) -> bool:
    if storage.device.type != "cpu" or not (storage.is_shared() and storage.nbytes()):
        return False
    # its workers collate into shared memory, for torch's own way of sending
    data: Any = sys.modules.get("torch.utils.data")
    return data is None or data.get_worker_info() is None


def _lend(storage: Any) -> tuple[tuple[Any, ...], Callable[[], Any]] | None:
    """Where others find the memory of a storage, and what lets go of it; None if nowhere."""
    reductions = _reductions()
    if getattr(storage, "filename", None) is not None:
        return None
    known = reductions.StorageWeakRef(storage)
    if reductions.torch.multiprocessing.get_sharing_strategy() == "file_system":
        place = storage._share_filename_cpu_()
        reductions.shared_cache[place[1]] = known
        # torch counts the storages that use the file, of which this is another
        twin = reductions.torch.UntypedStorage._new_shared_filename_cpu  # noqa: SLF001 - as torch rebuilds it
        kept = [twin(*place)]
        return place, kept.clear
    fd, size = storage._share_fd_cpu_()
    if fd < 0:
        # memory of a file
        return None
    reductions.shared_cache[reductions.fd_id(fd)] = known
    own = os.dup(fd)
    name = f"{backing.DESCRIPTOR}{own}"
    return (name, os.getpid(), size, _identity(own)), functools.partial(os.close, own)


def _find(*place: Any) -> Any:
    """The storage at a place; None where it is not to be had here."""
    reductions = _reductions()
    untyped = reductions.torch.UntypedStorage
    if isinstance(place[0], str):
        there = Place(*place)
        device, inode = _IDENTITY.unpack(there.mark)
        # what is here needs nobody who has it open for us
        found = reductions.storage_from_cache(untyped, (inode, device))
        if found is not None:
            return found
        fd = backing.find(there, lambda: store.current().node.directory, write=True)
        if fd is None:
            return None
        if _identity(fd) != there.mark:
            os.close(fd)
            return None
        return reductions.rebuild_storage_fd(untyped, _Received(fd), there.size)
    # as torch tells it: its manager, the name, the size
    found = reductions.storage_from_cache(untyped, place[1])
    if found is None:
        try:
            found = untyped._new_shared_filename_cpu(*place)  # noqa: SLF001 - as torch rebuilds it
        except RuntimeError:
            return None
        reductions.shared_cache[place[1]] = reductions.StorageWeakRef(found)
    return found


def _host() -> str:
    """What tells this host from others, on which the numbers of files mean something else."""
    return f"{store.current().host} {_boot()}"


@functools.cache
def _boot() -> str:
    # containers may have their host's name, and hosts each other's
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _identity(fd: int) -> bytes:
    status = os.fstat(fd)
    return _IDENTITY.pack(status.st_dev, status.st_ino)


def _reductions() -> Any:
    return importlib.import_module("torch.multiprocessing.reductions")


class _Received:
    """A descriptor as torch takes it from the standard library."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        """The descriptor, which is the caller's from now on."""
        return self._fd
