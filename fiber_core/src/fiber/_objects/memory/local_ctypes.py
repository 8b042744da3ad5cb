"""ctypes instances over shared memory, pickled by reference; and the layout of ctypes types.

A type's reducer is registered with :mod:`copyreg` when the first instance over shared memory is
made, since every pickler uses that table: the C pickler, cloudpickle, and a ``pickle.dumps`` of the
user's. Instances of the type that are not over shared memory are pickled as before. ``copy.copy``
uses the table as well; it gets an instance with memory of its own, as ever.
"""

from __future__ import annotations

import copyreg
import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from fiber._base import values
from fiber._objects.memory.heap import MemoryHandle

# base class of all simple types; the stubs have no public name for it
_SIMPLE: Any = ctypes.c_int.__base__
_POINTERS: tuple[Any, ...] = tuple(
    next(base for base in kind.__mro__ if base.__module__ == "_ctypes" and base.__name__ == name)
    for kind, name in (
        (ctypes.POINTER(ctypes.c_int), "_Pointer"),
        (ctypes.CFUNCTYPE(None), "CFuncPtr"),
    )
)
# codes of simple types that are addresses
_ADDRESSES = "zZO"


@values.frozen
class Field:
    """Field of a structure or union."""

    name: str
    ctype: CType
    #: position in the structure, and number of bytes
    begin: int
    size: int
    #: True for a bit field, which shares bytes with others
    is_bits: bool


_fields: weakref.WeakKeyDictionary[CType, dict[str, Field]] = weakref.WeakKeyDictionary()


def fields(ctype: CType) -> dict[str, Field]:
    """The fields of a structure or union, inherited and anonymous ones included."""
    found = _fields.get(ctype)
    if found is None:
        found = _fields[ctype] = {}
        for base in reversed(ctype.__mro__):
            anonymous = vars(base).get("_anonymous_", ())
            swapped = hasattr(base, "_swappedbytes_")
            for name, declared, *bits in vars(base).get("_fields_", ()):
                part = _swapped(declared) if swapped else declared
                begin = getattr(base, name).offset
                size = min(ctypes.sizeof(part), ctypes.sizeof(ctype) - begin)
                found[name] = Field(name, part, begin, size, bool(bits))
                if name in anonymous:
                    for inner in fields(part).values():
                        moved = values.evolve(inner, begin=begin + inner.begin)
                        found.setdefault(inner.name, moved)
    return found


def _swapped(ctype: CType) -> CType:
    """A type in the other byte order, as fields of ``BigEndianStructure`` and its like have it."""
    if issubclass(ctype, ctypes.Array):
        return _swapped(ctype._type_) * ctype._length_
    return getattr(ctype, "__ctype_be__" if sys.byteorder == "little" else "__ctype_le__", ctype)


def is_simple(ctype: CType) -> bool:
    """True for numbers, characters and their like."""
    return issubclass(ctype, _SIMPLE)


def is_plain(ctype: CType) -> bool:
    """True where ctypes gives a Python value for a part of this type, not an instance."""
    return ctype.__base__ is _SIMPLE


def is_text(ctype: CType) -> bool:
    """True for arrays of characters, which ctypes gives as a string where they are fields."""
    return issubclass(ctype, ctypes.Array) and ctype._type_ in (ctypes.c_char, ctypes.c_wchar)


def check_portable(ctype: CType) -> None:
    """Refuse types that are addresses, which mean nothing to other hosts.

    Raises:
        TypeError: it is one.
    """
    simple = is_simple(ctype) and ctype._type_ in _ADDRESSES
    if simple or issubclass(ctype, _POINTERS):
        msg = (
            f"{ctype.__name__} is an address in the memory of another host, where there is nothing "
            "to be found here; share what it points to"
        )
        raise TypeError(msg)


def put(instance: Any, data: bytes, begin: int = 0) -> None:
    """Write bytes of an instance."""
    ctypes.memmove(ctypes.addressof(instance) + begin, data, len(data))


def get(instance: Any, begin: int, size: int) -> bytes:
    """Read bytes of an instance."""
    return ctypes.string_at(ctypes.addressof(instance) + begin, size)


#: a ctypes class; the stubs have no public name for their common type
CType: TypeAlias = Any

# attribute of an instance for the handle of its memory
_HANDLE = "_fiber_handle"
# reducers that were registered before, by type; None: there was none
_former: dict[CType, Callable[[Any], Any] | None] = {}


def new(ctype: CType) -> Any:
    """A new instance over shared memory, all zeros.

    Raises:
        OSError: there is no room for it.
    """
    return over(ctype, MemoryHandle.of_size(ctypes.sizeof(ctype)))


def over(ctype: CType, handle: MemoryHandle) -> Any:
    """Make the instance over a handle's memory; a remote instance if it is not mapped.

    Raises:
        TypeError: the type has another size here than in the process that made it.
    """
    if ctypes.sizeof(ctype) != handle.size:
        msg = (
            f"{ctype.__name__} has {ctypes.sizeof(ctype)} bytes here and {handle.size} in process "
            f"{handle.maker}, which shares one; use a type of the same size everywhere"
        )
        raise TypeError(msg)
    register(ctype)
    handle.is_used = True
    if handle.view is None:
        from fiber._objects.memory.remote_ctypes import remote_instance

        return remote_instance(ctype, handle)
    instance = ctype.from_buffer(handle.view)
    # kept as long as the instance or a part that shares its memory lives
    vars(instance)[_HANDLE] = handle
    return instance


def handle_of(instance: Any) -> MemoryHandle | None:
    """The handle of the shared memory that an instance is over; None where it is over none."""
    found: MemoryHandle | None = getattr(instance, "__dict__", {}).get(_HANDLE)
    return found


# -- pickling


def register(ctype: CType) -> None:
    """Register the reducer of a type, once."""
    if ctype not in _former:
        _former[ctype] = copyreg.dispatch_table.get(ctype)
        copyreg.pickle(ctype, reduce)


def reduce(instance: Any) -> Any:
    """Reduce an instance of a registered type, for :mod:`copyreg`."""
    handle = handle_of(instance)
    if handle is not None:
        return rebuild, (spell(type(instance)), handle)
    before = _former.get(type(instance))
    return instance.__reduce_ex__(4) if before is None else before(instance)


def rebuild(spelled: Any, handle: MemoryHandle) -> Any:
    """Rebuild the instance of a pickle; a copy for :mod:`copy`."""
    ctype = read(spelled)
    if not handle.is_used:
        return over(ctype, handle)
    return ctype.from_buffer_copy(handle.read(0, handle.size))


def spell(ctype: CType) -> Any:
    """Spell a type for a pickle: array types have no name, so element and length."""
    if issubclass(ctype, ctypes.Array) and ctype is ctype._type_ * ctype._length_:
        return spell(ctype._type_), ctype._length_
    return ctype


def read(spelled: Any) -> CType:
    """The type that :func:`spell` spelled."""
    if isinstance(spelled, tuple):
        element, length = spelled
        return read(element) * length
    return spelled
