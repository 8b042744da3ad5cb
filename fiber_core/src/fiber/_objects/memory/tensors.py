"""Torch's tensors in shared memory: processes of this host map the memory, others are refused.

A pickle of a tensor is a copy of its storage, whatever memory that is in. For shared memory torch
has another way between processes of the standard library: descriptors that can be received once
each. Here the handle of an object travels that keeps the memory open, so any number of processes
may read the pickle, or none, and the memory lives for as long as the pickle is in transit.

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
from fiber._objects.memory.backing import Location
from fiber._objects.owned_object import OwnedObject
from fiber._objects.remote_object import RemoteObject
from fiber._wire import codec

if TYPE_CHECKING:
    from fiber._objects.store import Store

_ADVICE = (
    "send a copy (tensor.clone(), copy.deepcopy(model)), share what is only read by fiber.shared, "
    "or use fiber.RawArray for memory that processes on all hosts read and write"
)

# device and inode, the tag of memory that torch made
_IDENTITY = struct.Struct("<QQ")

# handles of storages that were sent, as long as these live
_handles: weakref.WeakKeyDictionary[Any, StorageHandle] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def register() -> bool:
    """Register reducers of torch's storages; False where torch is not fully imported yet."""
    torch: Any = sys.modules["torch"]
    if not (hasattr(torch, "UntypedStorage") and hasattr(torch, "multiprocessing")):
        # the latter is one of its last parts; older versions lack the former
        return False
    for kind in {*torch._storage_classes, torch.storage.TypedStorage}:  # noqa: SLF001 - as torch registers them
        copyreg.pickle(kind, _reduce_untyped if kind is torch.UntypedStorage else _reduce_typed)
    return True


class Storage(OwnedObject):
    """Keeps shared memory of a tensor open for the processes that it is sent to.

    Args:
        store: of this process.
        close: releases the memory.
    """

    def __init__(self, store: Store, close: Callable[[], Any]) -> None:
        super().__init__(store, Kind.STORAGE)
        self._closing = weakref.finalize(self, close)
        self._closing.atexit = False

    def is_drained(self) -> bool:
        """True where no process is about to map it."""
        with self.lock:
            return not self._references.is_expected(0)

    def _review(self) -> None:
        super()._review()
        self._store.drained()

    def _on_end_closed(self, end: int) -> None:
        self._closing()


class StorageHandle(Handle):
    """Handle that is pickled in place of a storage; kept in each process as long as the storage."""

    _object: Storage | RemoteObject
    _location: tuple[Any, ...]
    _store: Store

    @classmethod
    def of(cls, storage: Any) -> StorageHandle | None:
        """The handle of a storage in shared memory; None where other processes cannot map it."""
        current = store.current()
        with _making:
            found = _handles.get(storage)
            if found is None or not found.is_of(current):
                lent = _export(storage)
                if lent is None:
                    return None
                location, close = lent
                made = Storage(current, close)
                made.hold(0)
                found = _handles[storage] = cls.__new__(cls)
                found._restore(_host_id(), *location)  # noqa: SLF001 - its own
                found._attach(made, 0)  # noqa: SLF001 - its own
            return found

    def is_of(self, store: Store) -> bool:
        """True where it was made or loaded in this store's process."""
        return self._store is store

    def storage(self) -> Any:
        """The storage: the same object each time in one process.

        Raises:
            PeerLostError: the process that sent it is gone.
            UnpicklingError: its memory cannot be mapped in this process.
        """
        host, *location = self._location
        if host == _host_id():
            found = _find(*location)
            if found is not None:
                return found
            if isinstance(self._object, RemoteObject) and self._object.is_lost:
                raise self._object.owner.loss_error(self._object.shape.name)
        msg = (
            f"a tensor in shared memory of process {self._object.address.ident} cannot be mapped "
            f"here: the memory is of another host or container, or the process ended; {_ADVICE}"
        )
        raise pickle.UnpicklingError(msg)

    def _open(self) -> None:
        self._store = store.current()

    def _state(self) -> tuple[Any, ...]:
        return self._location

    def _restore(self, *location: Any) -> None:
        self._location = location


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
    """The handle that is pickled in place of a storage; None to pickle a copy.

    Raises:
        PicklingError: its receivers may be on other hosts.
    """
    envelope = codec.envelope()
    if envelope is None or isinstance(envelope, Block) or not _is_shared(storage):
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


def _is_shared(storage: Any) -> bool:
    if storage.device.type != "cpu" or not (storage.is_shared() and storage.nbytes()):
        return False
    # its workers collate into shared memory, for torch's own way of sending
    data: Any = sys.modules.get("torch.utils.data")
    return data is None or data.get_worker_info() is None


def _export(storage: Any) -> tuple[tuple[Any, ...], Callable[[], Any]] | None:
    """Location parts of a storage's memory and a function that releases it; None for a copy."""
    reductions = _reductions()
    if getattr(storage, "filename", None) is not None:
        return None
    known = reductions.StorageWeakRef(storage)
    if reductions.torch.multiprocessing.get_sharing_strategy() == "file_system":
        location = storage._share_filename_cpu_()
        reductions.shared_cache[location[1]] = known
        # torch counts the storages that use the file, of which this is another
        twin = reductions.torch.UntypedStorage._new_shared_filename_cpu  # noqa: SLF001 - as torch rebuilds it
        kept = [twin(*location)]
        return location, kept.clear
    fd, size = storage._share_fd_cpu_()
    if fd < 0:
        # memory of a file
        return None
    reductions.shared_cache[reductions.fd_id(fd)] = known
    own = os.dup(fd)
    name = f"{backing.DESCRIPTOR}{own}"
    return (name, os.getpid(), size, _identity(own)), functools.partial(os.close, own)


def _find(*parts: Any) -> Any:
    """The storage at a location, by its parts as :func:`_export` returns them; None if not here."""
    reductions = _reductions()
    untyped = reductions.torch.UntypedStorage
    if isinstance(parts[0], str):
        location = Location(*parts)
        device, inode = _IDENTITY.unpack(location.tag)
        # a storage that this process has needs no other process to have it open
        found = reductions.storage_from_cache(untyped, (inode, device))
        if found is not None:
            return found
        fd = backing.find(location, lambda: store.current().node.directory, write=True)
        if fd is None:
            return None
        if _identity(fd) != location.tag:
            os.close(fd)
            return None
        return reductions.rebuild_storage_fd(untyped, _Received(fd), location.size)
    # as torch names it: its manager, the name, the size
    found = reductions.storage_from_cache(untyped, parts[1])
    if found is None:
        try:
            found = untyped._new_shared_filename_cpu(*parts)  # noqa: SLF001 - as torch rebuilds it
        except RuntimeError:
            return None
        reductions.shared_cache[parts[1]] = reductions.StorageWeakRef(found)
    return found


def _host_id() -> str:
    """Identity of this host and its boot: devices and inodes are only unique within it."""
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
