"""Stand-ins for ctypes objects in shared memory of other hosts, read and written by messages.

A remote instance has the object's API: ``value``, ``raw``, items, slices, fields, and the methods
of the user's class. Each use reads or writes the bytes of that part by a message. ctypes itself
converts values, in small objects made for the purpose, so they are refused as on the other host.

It has no buffer. Before Python 3.12 no class can say so in an error of its own, so the names of
these classes do: "a bytes-like object is required, not 'ArrayOnAnotherHost'".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NoReturn

from fiber._objects.memory import local_ctypes
from fiber._objects.memory.heap import MemoryHandle
from fiber._objects.memory.local_ctypes import CType


def remote_instance(ctype: CType, handle: MemoryHandle, begin: int | None = None) -> RemoteInstance:
    """Make the stand-in for the object of a handle, or for its part that begins at ``begin``.

    Raises:
        TypeError: it is an address.
    """
    local_ctypes.check_portable(ctype)
    if local_ctypes.is_simple(ctype):
        kind: type[RemoteInstance] = ValueOnAnotherHost
    elif issubclass(ctype, ctypes.Array):
        kind = TextOnAnotherHost if local_ctypes.is_text(ctype) else ArrayOnAnotherHost
    else:
        kind = StructureOnAnotherHost
    return kind(ctype, handle, begin)


def local_copy(value: Any) -> Any:
    """A value that ctypes accepts: a copy of a remote instance, any other value itself."""
    return value._fiber_copy() if isinstance(value, RemoteInstance) else value  # noqa: SLF001 - its own


def ctype_of(thing: Any) -> CType:
    """The ctypes class of an instance, local or remote."""
    return thing._fiber_ctype if isinstance(thing, RemoteInstance) else type(thing)  # noqa: SLF001 - its own


class RemoteInstance:
    """Stand-in for a ctypes object, or a part of one, in memory of another host."""

    # names that no field of a user's structure has
    __slots__ = ("__weakref__", "_fiber_begin", "_fiber_ctype", "_fiber_handle", "_fiber_is_part")

    def __init__(self, ctype: CType, handle: MemoryHandle, begin: int | None) -> None:
        object.__setattr__(self, "_fiber_ctype", ctype)
        object.__setattr__(self, "_fiber_handle", handle)
        object.__setattr__(self, "_fiber_begin", begin or 0)
        object.__setattr__(self, "_fiber_is_part", begin is not None)

    _fiber_ctype: CType
    _fiber_handle: MemoryHandle
    _fiber_begin: int
    _fiber_is_part: bool

    def __repr__(self) -> str:
        return f"<{self._fiber_ctype.__name__} in the memory of process {self._fiber_handle.maker}>"

    def __reduce__(self) -> Any:
        spelled = local_ctypes.spell(self._fiber_ctype)
        if self._fiber_is_part:
            # by value, as ctypes pickles a part of another object
            return rebuild_part, (spelled, bytes(self._fiber_copy()))
        return local_ctypes.rebuild, (spelled, self._fiber_handle)

    def __copy__(self) -> Any:
        return self._fiber_copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self._fiber_copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        if copy is False:
            self._fiber_refuse_buffer()
        return np.array(self._fiber_copy(), dtype)

    @property
    def __buffer__(self) -> Any:  # noqa: PLE0302 - numpy asks for it before Python 3.12 as well
        self._fiber_refuse_buffer()

    def _fiber_refuse_buffer(self) -> NoReturn:
        name = self._fiber_ctype.__name__
        msg = (
            f"there is no buffer of this {name}: this process cannot map the memory of process "
            f"{self._fiber_handle.maker}, which is on another host or out of reach; copy it with "
            "fiber.sharedctypes.copy(), or read and write [:] or value"
        )
        raise TypeError(msg)

    # -- bytes

    def _fiber_copy(self) -> Any:
        """A ctypes instance with memory of its own."""
        return self._fiber_ctype.from_buffer_copy(
            self._fiber_read(0, ctypes.sizeof(self._fiber_ctype))
        )

    def _fiber_read(self, begin: int, size: int) -> bytes:
        return self._fiber_handle.read(self._fiber_begin + begin, size)

    def _fiber_write(self, *parts: tuple[int, bytes]) -> None:
        self._fiber_handle.write([(self._fiber_begin + begin, data) for begin, data in parts])

    def _fiber_part(self, ctype: CType, begin: int) -> Any:
        """A part as ctypes gives it: a Python value, or a remote instance."""
        if not local_ctypes.is_plain(ctype):
            return remote_instance(ctype, self._fiber_handle, self._fiber_begin + begin)
        local_ctypes.check_portable(ctype)
        return ctype.from_buffer_copy(self._fiber_read(begin, ctypes.sizeof(ctype))).value


class ValueOnAnotherHost(RemoteInstance):
    """Stand-in for a number, a character or the like."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Its value."""
        return self._fiber_copy().value

    @value.setter
    def value(self, value: Any) -> None:
        made = self._fiber_ctype()
        made.value = value
        self._fiber_write((0, bytes(made)))


class ArrayOnAnotherHost(RemoteInstance):
    """Stand-in for an array."""

    __slots__ = ()

    def __len__(self) -> int:
        return int(self._fiber_ctype._length_)

    def __iter__(self) -> Iterator[Any]:
        # in one message, not one an item
        found = self[:]
        if isinstance(found, bytes):
            return (found[n : n + 1] for n in range(len(found)))
        return iter(found)

    def __getitem__(self, index: Any) -> Any:
        element = self._fiber_ctype._type_
        size = ctypes.sizeof(element)
        if not isinstance(index, slice):
            return self._fiber_part(element, self._fiber_index(index) * size)
        chosen = range(len(self))[index]
        if not local_ctypes.is_plain(element):
            return [self._fiber_part(element, at * size) for at in chosen]
        local_ctypes.check_portable(element)
        if not chosen:
            return (element * 0)()[:]
        first, last = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
        data = self._fiber_read(first * size, (last + 1 - first) * size)
        return (element * (last + 1 - first)).from_buffer_copy(data)[:][:: chosen.step]

    def __setitem__(self, index: Any, value: Any) -> None:
        element = self._fiber_ctype._type_
        local_ctypes.check_portable(element)
        size = ctypes.sizeof(element)
        if not isinstance(index, slice):
            at = self._fiber_index(index)
            one = (element * 1)()
            one[0] = local_copy(value)
            self._fiber_write((at * size, bytes(one)))
            return
        chosen = range(len(self))[index]
        made = (element * len(chosen))()
        values = local_copy(value)
        made[:] = values if isinstance(values, str | bytes) else list(map(local_copy, values))
        data = bytes(made)
        if chosen.step == 1 and data:
            self._fiber_write((chosen[0] * size, data))
        else:
            parts = ((at * size, data[n * size : (n + 1) * size]) for n, at in enumerate(chosen))
            self._fiber_write(*parts)

    def _fiber_index(self, index: Any) -> int:
        at: int
        try:
            at = range(len(self))[index]
        except IndexError:
            msg = "invalid index"
            raise IndexError(msg) from None
        return at


class TextOnAnotherHost(ArrayOnAnotherHost):
    """Stand-in for an array of characters."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Its characters up to the first zero."""
        return self._fiber_copy().value

    @value.setter
    def value(self, value: Any) -> None:
        made = self._fiber_ctype()
        made.value = value
        # the zero that ends it where there is room, and nothing behind that
        count = min(len(value) + 1, len(self)) * ctypes.sizeof(self._fiber_ctype._type_)
        self._fiber_write((0, local_ctypes.get(made, 0, count)))

    @property
    def raw(self) -> Any:
        """All its bytes."""
        return self._fiber_copy().raw

    @raw.setter
    def raw(self, value: Any) -> None:
        made = self._fiber_ctype()
        made.raw = value
        self._fiber_write((0, local_ctypes.get(made, 0, memoryview(value).nbytes)))


class StructureOnAnotherHost(RemoteInstance):
    """Stand-in for a structure or union; methods and properties of its class get it as ``self``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        field = local_ctypes.fields(self._fiber_ctype).get(name)
        if field is None:
            return self._fiber_class_attribute(name)
        if not (field.is_bits or local_ctypes.is_text(field.ctype)):
            return self._fiber_part(field.ctype, field.begin)
        return getattr(self._fiber_scratch(field), name)

    def __setattr__(self, name: str, value: Any) -> None:
        field = local_ctypes.fields(self._fiber_ctype).get(name)
        if field is None:
            found = _class_attribute(self._fiber_ctype, name)
            if isinstance(found, property):
                found.__set__(self, value)
                return
            msg = (
                f"{name!r} is no field of {self._fiber_ctype.__name__}, so others would not see it"
            )
            raise AttributeError(msg)
        local_ctypes.check_portable(field.ctype)
        made = self._fiber_scratch(field) if field.is_bits else self._fiber_ctype()
        setattr(made, name, local_copy(value))
        self._fiber_write((field.begin, local_ctypes.get(made, field.begin, field.size)))

    def _fiber_class_attribute(self, name: str) -> Any:
        """An attribute of the class, bound as for an instance."""
        found = _class_attribute(self._fiber_ctype, name)
        if found is _NOTHING:
            msg = f"{self._fiber_ctype.__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, self, self._fiber_ctype)

    def _fiber_scratch(self, field: local_ctypes.Field) -> Any:
        """A local structure with the bytes of one field."""
        made = self._fiber_ctype()
        local_ctypes.put(made, self._fiber_read(field.begin, field.size), field.begin)
        return made


_NOTHING = object()


def _class_attribute(ctype: CType, name: str) -> Any:
    return next((vars(base)[name] for base in ctype.__mro__ if name in vars(base)), _NOTHING)


def rebuild_part(spelled: Any, data: bytes) -> Any:
    """Rebuild a part from its pickle, as a local instance."""
    return local_ctypes.read(spelled).from_buffer_copy(data)
