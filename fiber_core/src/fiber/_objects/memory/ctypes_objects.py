"""ctypes instances over shared memory, pickled by reference; their stand-ins on other hosts; the layout of types.

A type's reducer is registered with :mod:`copyreg` when the first instance over shared memory is
made, since every pickler uses that table: the C pickler, cloudpickle, and a ``pickle.dumps`` of the
user's. Instances of the type that are not over shared memory are pickled as before. ``copy.copy``
uses the table as well; it gets an instance with memory of its own, as ever.

On another host a remote instance has the object's API: ``value``, ``raw``, items, slices, fields, and the methods
of the user's class. Each use reads or writes the bytes of that part by a message. ctypes itself
converts values, in small objects made for the purpose, so they are refused as on the other host.
It has no buffer. Before Python 3.12 no class can say so in an error of its own, so the names of
these classes do: "a bytes-like object is required, not 'ArrayOnAnotherHost'".
"""

from __future__ import annotations

import copyreg
import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

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


def remote_instance(ctype: CType, handle: MemoryHandle, begin: int | None = None) -> RemoteInstance:
    """Make the stand-in for the object of a handle, or for its part that begins at ``begin``.

    Raises:
        TypeError: it is an address.
    """
    check_portable(ctype)
    if is_simple(ctype):
        kind: type[RemoteInstance] = ValueOnAnotherHost
    elif issubclass(ctype, ctypes.Array):
        kind = TextOnAnotherHost if is_text(ctype) else ArrayOnAnotherHost
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
        spelled = spell(self._fiber_ctype)
        if self._fiber_is_part:
            # by value, as ctypes pickles a part of another object
            return rebuild_part, (spelled, bytes(self._fiber_copy()))
        return rebuild, (spelled, self._fiber_handle)

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
        if not is_plain(ctype):
            return remote_instance(ctype, self._fiber_handle, self._fiber_begin + begin)
        check_portable(ctype)
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
        if not is_plain(element):
            return [self._fiber_part(element, at * size) for at in chosen]
        check_portable(element)
        if not chosen:
            return (element * 0)()[:]
        first, last = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
        data = self._fiber_read(first * size, (last + 1 - first) * size)
        return (element * (last + 1 - first)).from_buffer_copy(data)[:][:: chosen.step]

    def __setitem__(self, index: Any, value: Any) -> None:
        element = self._fiber_ctype._type_
        check_portable(element)
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
        self._fiber_write((0, get(made, 0, count)))

    @property
    def raw(self) -> Any:
        """All its bytes."""
        return self._fiber_copy().raw

    @raw.setter
    def raw(self, value: Any) -> None:
        made = self._fiber_ctype()
        made.raw = value
        self._fiber_write((0, get(made, 0, memoryview(value).nbytes)))


class StructureOnAnotherHost(RemoteInstance):
    """Stand-in for a structure or union; methods and properties of its class get it as ``self``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        field = fields(self._fiber_ctype).get(name)
        if field is None:
            return self._fiber_class_attribute(name)
        if not (field.is_bits or is_text(field.ctype)):
            return self._fiber_part(field.ctype, field.begin)
        return getattr(self._fiber_scratch(field), name)

    def __setattr__(self, name: str, value: Any) -> None:
        field = fields(self._fiber_ctype).get(name)
        if field is None:
            found = _class_attribute(self._fiber_ctype, name)
            if isinstance(found, property):
                found.__set__(self, value)
                return
            msg = (
                f"{name!r} is no field of {self._fiber_ctype.__name__}, so others would not see it"
            )
            raise AttributeError(msg)
        check_portable(field.ctype)
        made = self._fiber_scratch(field) if field.is_bits else self._fiber_ctype()
        setattr(made, name, local_copy(value))
        self._fiber_write((field.begin, get(made, field.begin, field.size)))

    def _fiber_class_attribute(self, name: str) -> Any:
        """An attribute of the class, bound as for an instance."""
        found = _class_attribute(self._fiber_ctype, name)
        if found is _NOTHING:
            msg = f"{self._fiber_ctype.__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, self, self._fiber_ctype)

    def _fiber_scratch(self, field: Field) -> Any:
        """A local structure with the bytes of one field."""
        made = self._fiber_ctype()
        put(made, self._fiber_read(field.begin, field.size), field.begin)
        return made


_NOTHING = object()


def _class_attribute(ctype: CType, name: str) -> Any:
    return next((vars(base)[name] for base in ctype.__mro__ if name in vars(base)), _NOTHING)


def rebuild_part(spelled: Any, data: bytes) -> Any:
    """Rebuild a part from its pickle, as a local instance."""
    return read(spelled).from_buffer_copy(data)
