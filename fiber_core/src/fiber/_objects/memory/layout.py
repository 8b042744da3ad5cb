"""Where the parts of ctypes types are, and their values as bytes."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

from fiber._base import values
from fiber._objects.memory.local_ctypes import CType

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
