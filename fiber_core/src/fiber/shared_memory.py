"""``SharedMemory`` and ``ShareableList``: the same as in ``multiprocessing.shared_memory``.

Blocks of memory with a name, which processes of one host map: for backends whose processes share the
program's host, such as local. :mod:`fiber.sharedctypes` and managers work between hosts as well.

A block lives until :meth:`SharedMemory.unlink`, or until the run ends, however that comes. No end of
a process removes it before: the standard library's class, before Python 3.13, removes at a process's
end what the process had attached to, unless a parent that uses it too has started that process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import types
from multiprocessing import shared_memory as _stdlib
from pathlib import Path
from typing import Any

from fiber._agent import rundir
from fiber._runtime import runtime
from fiber.exceptions import CapabilityError

__all__ = ["ShareableList", "SharedMemory"]

# the stdlib's prefix; some systems have names of 14 characters at most
_PREFIX = "psm_"


class SharedMemory(_stdlib.SharedMemory):
    """A block of shared memory, new or attached to.

    Args:
        name: of the block; None for a new one, which gets a free name.
        create: True for a new one.
        size: bytes of a new one.
        track: False for a new one that outlives the run; the stdlib has this since Python 3.13.

    Raises:
        CapabilityError: processes of this backend do not share a host.
        FileExistsError: a block of this name exists already.
        FileNotFoundError: there is none to attach to.
        ValueError: a new one without a size, or an old one without a name.
    """

    # the stdlib's attributes, of which its methods live
    _name: Any
    _fd: int
    _mmap: Any
    _buf: Any
    _size: int

    def __init__(
        self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True
    ) -> None:
        if size < 0 or (create and not size):
            msg = f"a new block has a size of at least one byte, not {size}"
            raise ValueError(msg)
        if name is None and not create:
            msg = "a block is attached to by its name; create=True makes a new one"
            raise ValueError(msg)
        self._run = _run_folder()
        # for the stdlib's methods: its count of blocks is not asked
        self._track = False
        if not create:
            self._name = f"/{name}"
            self._fd = rundir.open_block(str(name))
        elif name is not None:
            self._create(name, track=track)
        else:
            while True:
                with contextlib.suppress(FileExistsError):
                    self._create(_PREFIX + secrets.token_hex(4), track=track)
                    break
        try:
            if create:
                os.ftruncate(self._fd, size)
            self._size = os.fstat(self._fd).st_size
            self._mmap = mmap.mmap(self._fd, self._size)
        except BaseException:
            self.close()
            if create:
                self.unlink()
            raise
        self._buf = memoryview(self._mmap)

    def unlink(self) -> None:
        """Remove the block: no process can attach to it any more, and mappings stay.

        Raises:
            FileNotFoundError: it was removed before.
        """
        rundir.unlink_block(self.name)
        rundir.forget_block(self._run, self.name)

    def _create(self, name: str, *, track: bool) -> None:
        self._name = f"/{name}"
        if track:
            self._fd = rundir.create_block(self._run, name)
        else:
            self._fd = rundir.open_block(name, create=True)


class ShareableList(_stdlib.ShareableList[Any]):
    """A list of fixed length of numbers, strings, bytes, booleans and None in a block of memory.

    Args:
        sequence: the items of a new one.
        name: of its block; without a sequence that of the list to attach to.

    Raises:
        CapabilityError: processes of this backend do not share a host.
    """

    # the stdlib's, with our class of blocks
    __init__ = types.FunctionType(
        _stdlib.ShareableList.__init__.__code__,
        {**vars(_stdlib), "SharedMemory": SharedMemory},
        "__init__",
        _stdlib.ShareableList.__init__.__defaults__,
    )
    __init__.__kwdefaults__ = _stdlib.ShareableList.__init__.__kwdefaults__


def _run_folder() -> Path:
    """Folder of the run of this process.

    Raises:
        CapabilityError: its processes do not share a host.
    """
    current = runtime.current()
    if not current.info.capabilities.same_host:
        what = (
            "memory that processes map by a name (fiber.Array, fiber.shared and managers work "
            "between hosts)"
        )
        raise CapabilityError(current.info.name, "same_host", what)
    return current.directory
