"""ctypes instances over blocks of memory, which are pickled by reference.

A type's reducer is registered with :mod:`copyreg` when the first instance over a block is made,
because every way in which an object becomes bytes here and in users' code goes by that table: the C
pickler, which is the quick way, cloudpickle, and a ``pickle.dumps`` of the user's. Instances of the
type that are over no block are pickled as before. ``copy.copy`` uses the table as well; it gets an
instance with memory of its own, as it always did.

Where the parts of ctypes types are, and their values as bytes.
"""

from __future__ import annotations

import copyreg
import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from fiber._base import values
from fiber._objects.memory.block import Hold

# what all simple types are; the stubs have no public name for it
_SIMPLE: Any = ctypes.c_int.__base__
_POINTERS: tuple[Any, ...] = tuple(
    next(base for base in kind.__mro__ if base.__module__ == "_ctypes" and base.__name__ == name)
    for kind, name in (
        (ctypes.POINTER(ctypes.c_int), "_Pointer"),
        (ctypes.CFUNCTYPE(None), "CFuncPtr"),
    )
)
# codes of simple types that are addresses of something
_ADDRESSES = "zZO"


@values.frozen
class Field:
    """One field of a structure or union."""

    name: str
    ctype: CType
    #: bytes from the beginning of the structure, and how many they are
    begin: int
    size: int
    #: True where it has bytes together with others
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
            for name, told, *bits in vars(base).get("_fields_", ()):
                part = _swapped(told) if swapped else told
                begin = getattr(base, name).offset
                size = min(ctypes.sizeof(part), ctypes.sizeof(ctype) - begin)
                found[name] = Field(name, part, begin, size, bool(bits))
                if name in anonymous:
                    for inner in fields(part).values():
                        moved = values.evolve(inner, begin=begin + inner.begin)
                        found.setdefault(inner.name, moved)
    return found


def _swapped(ctype: CType) -> CType:
    """A type as it is in a structure of the other byte order."""
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
    """Refuse what is an address.

    Raises:
        TypeError: it is.
    """
    simple = is_simple(ctype) and ctype._type_ in _ADDRESSES
    if simple or issubclass(ctype, _POINTERS):
        msg = (
            f"{ctype.__name__} is an address in the memory of another host, where there is nothing "
            "to be found here; share what it points to"
        )
        raise TypeError(msg)


def put(instance: Any, data: bytes, begin: int = 0) -> None:
    """Change bytes of an instance."""
    ctypes.memmove(ctypes.addressof(instance) + begin, data, len(data))


def get(instance: Any, begin: int, size: int) -> bytes:
    """Bytes of an instance."""
    return ctypes.string_at(ctypes.addressof(instance) + begin, size)


#: a ctypes class; the stubs have no public name for what all of them are
CType: TypeAlias = Any

# where an instance keeps what holds its block
_HOLD = "_fiber_hold"
# what pickled a type before, by type; None: its own way
_before: dict[CType, Callable[[Any], Any] | None] = {}


def new(ctype: CType) -> Any:
    """A new instance over shared memory, all zeros.

    Raises:
        OSError: there is no room for it.
    """
    return over(ctype, Hold.of_size(ctypes.sizeof(ctype)))


def over(ctype: CType, hold: Hold) -> Any:
    """The instance over a block, or what stands for it where the block is not mapped.

    Raises:
        TypeError: the type has another size here than where the block was made.
    """
    if ctypes.sizeof(ctype) != hold.size:
        msg = (
            f"{ctype.__name__} has {ctypes.sizeof(ctype)} bytes here and {hold.size} in process "
            f"{hold.maker}, which shares one; use a type of the same size everywhere"
        )
        raise TypeError(msg)
    register(ctype)
    hold.is_used = True
    if hold.view is None:
        from fiber._objects.memory.remote_ctypes import distant

        return distant(ctype, hold)
    instance = ctype.from_buffer(hold.view)
    # as long as the instance or anything that shares its memory lives
    vars(instance)[_HOLD] = hold
    return instance


def hold_of(instance: Any) -> Hold | None:
    """What holds the block that an instance is over; None where it is over none."""
    found: Hold | None = getattr(instance, "__dict__", {}).get(_HOLD)
    return found


# -- pickling


def register(ctype: CType) -> None:
    """Have instances of a type pickled by reference where they are over a block."""
    if ctype not in _before:
        _before[ctype] = copyreg.dispatch_table.get(ctype)
        copyreg.pickle(ctype, reduce)


def reduce(instance: Any) -> Any:
    """How an instance of a registered type is pickled."""
    hold = hold_of(instance)
    if hold is not None:
        return rebuild, (spell(type(instance)), hold)
    before = _before.get(type(instance))
    return instance.__reduce_ex__(4) if before is None else before(instance)


def rebuild(spelled: Any, hold: Hold) -> Any:
    """The instance of a pickle, or a copy for :mod:`copy`."""
    ctype = read(spelled)
    if not hold.is_used:
        return over(ctype, hold)
    return ctype.from_buffer_copy(hold.read(0, hold.size))


def spell(ctype: CType) -> Any:
    """A type as it is pickled: array types have no name that they could be found by."""
    if issubclass(ctype, ctypes.Array) and ctype is ctype._type_ * ctype._length_:
        return spell(ctype._type_), ctype._length_
    return ctype


def read(spelled: Any) -> CType:
    """The type of what :func:`spell` made."""
    if isinstance(spelled, tuple):
        element, length = spelled
        return read(element) * length
    return spelled
