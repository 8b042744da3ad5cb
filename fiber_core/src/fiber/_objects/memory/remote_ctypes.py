"""What stands for a ctypes object whose memory this process does not map.

It has the object's API: ``value``, ``raw``, items, slices, fields, and the methods of the user's
class. Each use reads or writes the bytes of that part where the memory is. Values are converted by
ctypes itself, in small objects made for the purpose, so they are refused as on the other host.

There is no buffer. Before Python 3.12 no class can say so in its own words, so the names of these
do: "a bytes-like object is required, not 'ArrayOnAnotherHost'".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NoReturn

from fiber._objects.memory import local_ctypes
from fiber._objects.memory import local_ctypes as layout
from fiber._objects.memory.block import Hold
from fiber._objects.memory.local_ctypes import CType


def distant(ctype: CType, hold: Hold, begin: int | None = None) -> Distant:
    """What stands for the object of a block, or for the part of it that begins somewhere.

    Raises:
        TypeError: it is an address.
    """
    layout.check_portable(ctype)
    if layout.is_simple(ctype):
        kind: type[Distant] = ValueOnAnotherHost
    elif issubclass(ctype, ctypes.Array):
        kind = TextOnAnotherHost if layout.is_text(ctype) else ArrayOnAnotherHost
    else:
        kind = StructureOnAnotherHost
    return kind(ctype, hold, begin)


def local(value: Any) -> Any:
    """A value that ctypes takes: a copy of what is distant, anything else as it is."""
    return value._far_copy() if isinstance(value, Distant) else value  # noqa: SLF001 - its own


def type_of(thing: Any) -> CType:
    """The ctypes class of an instance, or of what it stands for."""
    return thing._far_type if isinstance(thing, Distant) else type(thing)  # noqa: SLF001 - its own


class Distant:
    """A part of a block on another host."""

    # no names that a field may have
    __slots__ = ("__weakref__", "_far_begin", "_far_hold", "_far_is_part", "_far_type")

    def __init__(self, ctype: CType, hold: Hold, begin: int | None) -> None:
        object.__setattr__(self, "_far_type", ctype)
        object.__setattr__(self, "_far_hold", hold)
        object.__setattr__(self, "_far_begin", begin or 0)
        object.__setattr__(self, "_far_is_part", begin is not None)

    _far_type: CType
    _far_hold: Hold
    _far_begin: int
    _far_is_part: bool

    def __repr__(self) -> str:
        return f"<{self._far_type.__name__} in the memory of process {self._far_hold.maker}>"

    def __reduce__(self) -> Any:
        spelled = local_ctypes.spell(self._far_type)
        if self._far_is_part:
            # by value, as ctypes pickles a part of another object
            return rebuild_part, (spelled, bytes(self._far_copy()))
        return local_ctypes.rebuild, (spelled, self._far_hold)

    def __copy__(self) -> Any:
        return self._far_copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self._far_copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        if copy is False:
            self._far_refuse()
        return np.array(self._far_copy(), dtype)

    @property
    def __buffer__(self) -> Any:  # noqa: PLE0302 - numpy asks for it before Python 3.12 as well
        self._far_refuse()

    def _far_refuse(self) -> NoReturn:
        name = self._far_type.__name__
        msg = (
            f"there is no buffer of this {name}: this process cannot map the memory of process "
            f"{self._far_hold.maker}, which is on another host or out of reach; copy it with "
            "fiber.sharedctypes.copy(), or read and write [:] or value"
        )
        raise TypeError(msg)

    # -- bytes

    def _far_copy(self) -> Any:
        """A ctypes instance with memory of its own."""
        return self._far_type.from_buffer_copy(self._far_read(0, ctypes.sizeof(self._far_type)))

    def _far_read(self, begin: int, size: int) -> bytes:
        return self._far_hold.read(self._far_begin + begin, size)

    def _far_write(self, *parts: tuple[int, bytes]) -> None:
        self._far_hold.write([(self._far_begin + begin, data) for begin, data in parts])

    def _far_part(self, ctype: CType, begin: int) -> Any:
        """A part as ctypes gives it: a Python value or something to go on with."""
        if not layout.is_plain(ctype):
            return distant(ctype, self._far_hold, self._far_begin + begin)
        layout.check_portable(ctype)
        return ctype.from_buffer_copy(self._far_read(begin, ctypes.sizeof(ctype))).value


class ValueOnAnotherHost(Distant):
    """A number, a character or their like."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Its value."""
        return self._far_copy().value

    @value.setter
    def value(self, value: Any) -> None:
        made = self._far_type()
        made.value = value
        self._far_write((0, bytes(made)))


class ArrayOnAnotherHost(Distant):
    """An array."""

    __slots__ = ()

    def __len__(self) -> int:
        return int(self._far_type._length_)

    def __iter__(self) -> Iterator[Any]:
        # in one message, not one an item
        found = self[:]
        if isinstance(found, bytes):
            return (found[n : n + 1] for n in range(len(found)))
        return iter(found)

    def __getitem__(self, index: Any) -> Any:
        element = self._far_type._type_
        size = ctypes.sizeof(element)
        if not isinstance(index, slice):
            return self._far_part(element, self._far_index(index) * size)
        chosen = range(len(self))[index]
        if not layout.is_plain(element):
            return [self._far_part(element, at * size) for at in chosen]
        layout.check_portable(element)
        if not chosen:
            return (element * 0)()[:]
        first, last = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
        data = self._far_read(first * size, (last + 1 - first) * size)
        return (element * (last + 1 - first)).from_buffer_copy(data)[:][:: chosen.step]

    def __setitem__(self, index: Any, value: Any) -> None:
        element = self._far_type._type_
        layout.check_portable(element)
        size = ctypes.sizeof(element)
        if not isinstance(index, slice):
            at = self._far_index(index)
            one = (element * 1)()
            one[0] = local(value)
            self._far_write((at * size, bytes(one)))
            return
        chosen = range(len(self))[index]
        made = (element * len(chosen))()
        values = local(value)
        made[:] = values if isinstance(values, str | bytes) else list(map(local, values))
        data = bytes(made)
        if chosen.step == 1 and data:
            self._far_write((chosen[0] * size, data))
        else:
            parts = ((at * size, data[n * size : (n + 1) * size]) for n, at in enumerate(chosen))
            self._far_write(*parts)

    def _far_index(self, index: Any) -> int:
        at: int
        try:
            at = range(len(self))[index]
        except IndexError:
            msg = "invalid index"
            raise IndexError(msg) from None
        return at


class TextOnAnotherHost(ArrayOnAnotherHost):
    """An array of characters."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Its characters up to the first zero."""
        return self._far_copy().value

    @value.setter
    def value(self, value: Any) -> None:
        made = self._far_type()
        made.value = value
        # the zero that ends it where there is room, and nothing behind that
        count = min(len(value) + 1, len(self)) * ctypes.sizeof(self._far_type._type_)
        self._far_write((0, layout.get(made, 0, count)))

    @property
    def raw(self) -> Any:
        """All its bytes."""
        return self._far_copy().raw

    @raw.setter
    def raw(self, value: Any) -> None:
        made = self._far_type()
        made.raw = value
        self._far_write((0, layout.get(made, 0, memoryview(value).nbytes)))


class StructureOnAnotherHost(Distant):
    """A structure or union; methods and properties of its class see it as ``self``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        field = layout.fields(self._far_type).get(name)
        if field is None:
            return self._far_of_class(name)
        if not (field.is_bits or layout.is_text(field.ctype)):
            return self._far_part(field.ctype, field.begin)
        return getattr(self._far_scratch(field), name)

    def __setattr__(self, name: str, value: Any) -> None:
        field = layout.fields(self._far_type).get(name)
        if field is None:
            found = _of_class(self._far_type, name)
            if isinstance(found, property):
                found.__set__(self, value)
                return
            msg = f"{name!r} is no field of {self._far_type.__name__}, so others would not see it"
            raise AttributeError(msg)
        layout.check_portable(field.ctype)
        made = self._far_scratch(field) if field.is_bits else self._far_type()
        setattr(made, name, local(value))
        self._far_write((field.begin, layout.get(made, field.begin, field.size)))

    def _far_of_class(self, name: str) -> Any:
        """Something that the class has, as an instance has it."""
        found = _of_class(self._far_type, name)
        if found is _NOTHING:
            msg = f"{self._far_type.__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, self, self._far_type)

    def _far_scratch(self, field: layout.Field) -> Any:
        """A structure in which one field is as it is."""
        made = self._far_type()
        layout.put(made, self._far_read(field.begin, field.size), field.begin)
        return made


_NOTHING = object()


def _of_class(ctype: CType, name: str) -> Any:
    return next((vars(base)[name] for base in ctype.__mro__ if name in vars(base)), _NOTHING)


def rebuild_part(spelled: Any, data: bytes) -> Any:
    """The instance of a pickle of a part."""
    return local_ctypes.read(spelled).from_buffer_copy(data)
