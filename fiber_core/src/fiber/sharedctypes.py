"""ctypes objects in memory that processes share, alone or with a lock.

On the host of the process that makes one it is an instance of its ctypes class, over memory that
all processes of that host map. On other hosts an object with the same API stands for it, which
reads and writes by messages.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import sharedctypes as _stdlib
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, overload

from fiber._base.entry_points import load_object
from fiber._objects.memory import ctypes_objects
from fiber._objects.memory.ctypes_objects import ctype_of, local_copy
from fiber.synchronize import RLock

if TYPE_CHECKING:
    from ctypes import _CData, _SimpleCData

    _Whole: TypeAlias = Literal["b", "B", "h", "H", "i", "I", "l", "L", "q", "Q"]
    _Real: TypeAlias = Literal["f", "d"]
    _Content: TypeAlias = int | Sequence[Any]

__all__ = ["Array", "RawArray", "RawValue", "Value", "copy", "synchronized"]

T = TypeVar("T")
C = TypeVar("C", bound="_CData")

#: the ctypes class of each typecode, those of the running Python
typecode_to_type: dict[str, Any] = dict(vars(_stdlib)["typecode_to_type"])


@overload
def RawValue(typecode_or_type: type[C], *args: Any) -> C: ...
@overload
def RawValue(typecode_or_type: str, *args: Any) -> Any: ...
def RawValue(typecode_or_type: Any, *args: Any) -> Any:  # noqa: N802 - the stdlib's name
    """Make a ctypes object in shared memory.

    Args:
        typecode_or_type: one of the typecodes of :mod:`array`, or a ctypes class.
        args: for the class; zeros if omitted.

    Raises:
        OSError: there is no room for it.
    """
    instance = ctypes_objects.new(typecode_to_type.get(typecode_or_type, typecode_or_type))
    instance.__init__(*args)
    return instance


@overload
def RawArray(typecode_or_type: type[C], size_or_initializer: _Content) -> ctypes.Array[C]: ...
@overload
def RawArray(typecode_or_type: str, size_or_initializer: _Content) -> Any: ...
def RawArray(typecode_or_type: Any, size_or_initializer: Any) -> Any:  # noqa: N802
    """Make a ctypes array in shared memory.

    Args:
        typecode_or_type: one of the typecodes of :mod:`array`, or a ctypes class.
        size_or_initializer: its length, then it is all zeros; or its elements.

    Raises:
        OSError: there is no room for it.
    """
    element = typecode_to_type.get(typecode_or_type, typecode_or_type)
    if isinstance(size_or_initializer, int):
        return ctypes_objects.new(element * size_or_initializer)
    instance = ctypes_objects.new(element * len(size_or_initializer))
    instance.__init__(*size_or_initializer)
    return instance


@overload
def Value(typecode_or_type: type[C], *args: Any, lock: Literal[False], ctx: Any = None) -> C: ...
@overload
def Value(
    typecode_or_type: type[_SimpleCData[T]], *args: Any, lock: Any = True, ctx: Any = None
) -> Synchronized[T]: ...
@overload
def Value(
    typecode_or_type: type[C], *args: Any, lock: Any = True, ctx: Any = None
) -> SynchronizedBase[C]: ...
@overload
def Value(
    typecode_or_type: _Whole, *args: Any, lock: Literal[True] = True, ctx: Any = None
) -> Synchronized[int]: ...
@overload
def Value(
    typecode_or_type: _Real, *args: Any, lock: Literal[True] = True, ctx: Any = None
) -> Synchronized[float]: ...
@overload
def Value(typecode_or_type: str, *args: Any, lock: Any = True, ctx: Any = None) -> Any: ...
def Value(  # noqa: N802
    typecode_or_type: Any, *args: Any, lock: Any = True, ctx: Any = None
) -> Any:
    """Make a ctypes object in shared memory, with a lock around each use.

    Args:
        typecode_or_type: one of the typecodes of :mod:`array`, or a ctypes class.
        args: for the class; zeros if omitted.
        lock: the lock; True for an ``RLock`` of its own, False for none.
        ctx: the context that makes the lock.

    Raises:
        AttributeError: the lock has no method ``acquire``.
        OSError: there is no room for it.
    """
    return _with_lock(RawValue(typecode_or_type, *args), lock, ctx)


@overload
def Array(
    typecode_or_type: type[C],
    size_or_initializer: _Content,
    *,
    lock: Literal[False],
    ctx: Any = None,
) -> ctypes.Array[C]: ...
@overload
def Array(  # type: ignore[overload-overlap] # the narrower one comes first
    typecode_or_type: type[ctypes.c_char],
    size_or_initializer: _Content,
    *,
    lock: Any = True,
    ctx: Any = None,
) -> SynchronizedString: ...
@overload
def Array(  # type: ignore[overload-overlap] # the narrower one comes first
    typecode_or_type: type[_SimpleCData[T]],
    size_or_initializer: _Content,
    *,
    lock: Any = True,
    ctx: Any = None,
) -> SynchronizedArray[T]: ...
@overload
def Array(
    typecode_or_type: type[C],
    size_or_initializer: _Content,
    *,
    lock: Any = True,
    ctx: Any = None,
) -> SynchronizedArray[C]: ...
@overload
def Array(
    typecode_or_type: _Whole,
    size_or_initializer: _Content,
    *,
    lock: Literal[True] = True,
    ctx: Any = None,
) -> SynchronizedArray[int]: ...
@overload
def Array(
    typecode_or_type: _Real,
    size_or_initializer: _Content,
    *,
    lock: Literal[True] = True,
    ctx: Any = None,
) -> SynchronizedArray[float]: ...
@overload
def Array(
    typecode_or_type: str, size_or_initializer: _Content, *, lock: Any = True, ctx: Any = None
) -> Any: ...
def Array(  # noqa: N802
    typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True, ctx: Any = None
) -> Any:
    """Make a ctypes array in shared memory, with a lock around each use.

    Args:
        typecode_or_type: one of the typecodes of :mod:`array`, or a ctypes class.
        size_or_initializer: its length, then it is all zeros; or its elements.
        lock: the lock; True for an ``RLock`` of its own, False for none.
        ctx: the context that makes the lock.

    Raises:
        AttributeError: the lock has no method ``acquire``.
        OSError: there is no room for it.
    """
    return _with_lock(RawArray(typecode_or_type, size_or_initializer), lock, ctx)


def _with_lock(instance: Any, lock: Any, ctx: Any) -> Any:
    if lock is False:
        return instance
    if lock is True or lock is None:
        lock = _new_lock(ctx)
    if not hasattr(lock, "acquire"):
        msg = f"{lock!r} has no method 'acquire'"
        raise AttributeError(msg)
    return synchronized(instance, lock, ctx=ctx)


def copy(obj: Any) -> Any:
    """Copy a ctypes object, local or of another host, to shared memory of this process.

    Raises:
        OSError: there is no room for it.
    """
    source = local_copy(obj)
    made = ctypes_objects.new(type(source))
    ctypes.memmove(ctypes.addressof(made), ctypes.addressof(source), ctypes.sizeof(source))
    return made


def synchronized(obj: Any, lock: Any = None, ctx: Any = None) -> Any:
    """Wrap a ctypes object with a lock around each use.

    Args:
        obj: the object.
        lock: the lock; None for an ``RLock`` of its own.
        ctx: the context that makes that.
    """
    assert not isinstance(obj, _stdlib.SynchronizedBase), "object already synchronized"
    ctype = ctype_of(obj)
    if ctypes_objects.is_simple(ctype):
        return Synchronized(obj, lock, ctx)
    if issubclass(ctype, ctypes.Array):
        if ctype._type_ is ctypes.c_char:
            return SynchronizedString(obj, lock, ctx)
        return SynchronizedArray(obj, lock, ctx)
    found = class_cache.get(ctype)
    if found is None:
        properties = {name: make_property(name) for name in ctypes_objects.fields(ctype)}
        name = f"Synchronized{ctype.__name__}"
        found = class_cache[ctype] = type(name, (SynchronizedBase,), properties)
    return found(obj, lock, ctx)


def get_context(method: str | None = None) -> Any:
    """:func:`fiber.get_context`, which the standard library's module has under this name, too."""
    # by name: contexts are built upon this module
    return load_object("fiber.context:_default_context").get_context(method)


def _new_lock(ctx: Any) -> Any:
    return RLock() if ctx is None else ctx.RLock()


def reduce_ctype(obj: Any) -> Any:
    """Reduce a ctypes object for pickle: by reference where its memory is shared."""
    return ctypes_objects.reduce(obj)


rebuild_ctype = ctypes_objects.rebuild

# -- with a lock


def _read_value(self: SynchronizedBase[Any]) -> Any:
    if self._is_mine():
        return self._obj.value
    self.acquire()
    try:
        return self._obj.value
    finally:
        self.release()


def _write_value(self: SynchronizedBase[Any], value: Any) -> None:
    if self._is_mine():
        self._obj.value = value
        return
    self.acquire()
    try:
        self._obj.value = value
    finally:
        self.release()


#: by name; that of numbers is written out, which takes a tenth less time
prop_cache: dict[str, property] = {"value": property(_read_value, _write_value)}
class_cache: weakref.WeakKeyDictionary[Any, type[Any]] = weakref.WeakKeyDictionary()


def make_property(name: str) -> Any:
    """Make a property for an attribute of the ctypes object, with the lock around each use."""
    found = prop_cache.get(name)
    if found is None:

        def read(self: SynchronizedBase[Any]) -> Any:
            if self._is_mine():
                return getattr(self._obj, name)
            self.acquire()
            try:
                return getattr(self._obj, name)
            finally:
                self.release()

        def write(self: SynchronizedBase[Any], value: Any) -> None:
            if self._is_mine():
                setattr(self._obj, name, value)
                return
            self.acquire()
            try:
                setattr(self._obj, name, value)
            finally:
                self.release()

        found = prop_cache[name] = property(read, write)
    return found


def _no_telling() -> Callable[[], bool]:
    """For locks that cannot tell whether this thread has them."""
    return lambda: False


# the stubs have arguments for the stdlib's classes, which the classes have not
class SynchronizedBase(_stdlib.SynchronizedBase, Generic[C]):  # type: ignore[type-arg]
    """A ctypes object and its lock."""

    _obj: Any
    _lock: Any

    def __init__(self, obj: Any, lock: Any = None, ctx: Any = None) -> None:
        self._obj = obj
        self._lock = lock or _new_lock(ctx)
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        # what is read or written in a "with" block needs no second look at the lock
        self._is_mine = getattr(self._lock, "_is_mine_to_use", _no_telling)()

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *args: object) -> Any:
        return self._lock.__exit__(*args)

    def __reduce__(self) -> Any:
        return synchronized, (self._obj, self._lock)

    def get_obj(self) -> C:
        """The ctypes object, or its stand-in on another host."""
        found: C = self._obj
        return found

    def get_lock(self) -> Any:
        """The lock."""
        return self._lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} wrapper for {self._obj}>"


class Synchronized(SynchronizedBase[Any], _stdlib.Synchronized, Generic[T]):  # type: ignore[type-arg]
    """A number or the like, and its lock."""

    value: T = make_property("value")


class SynchronizedArray(SynchronizedBase[Any], _stdlib.SynchronizedArray, Generic[T]):  # type: ignore[type-arg]
    """An array and its lock."""

    def __len__(self) -> int:
        return len(self._obj)

    def __iter__(self) -> Iterator[T]:
        # one after another, as the stdlib's: the lock is free in between
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, i: slice) -> list[T]: ...
    @overload
    def __getitem__(self, i: SupportsIndex) -> T: ...
    def __getitem__(self, i: Any) -> Any:
        with self:
            return self._obj[i]

    def __setitem__(self, i: Any, value: Any) -> None:
        with self:
            self._obj[i] = value


class SynchronizedString(SynchronizedArray[bytes], _stdlib.SynchronizedString):  # type: ignore[misc]
    """An array of bytes and its lock."""

    value: bytes = make_property("value")
    raw: bytes = make_property("raw")
