"""Objects to bytes and back: pickle where it can, cloudpickle where it must, tracebacks that travel.

Everything with an importable home goes by reference, as with ``multiprocessing``'s spawn. By value
go lambdas, closures, and what was defined in a ``__main__`` that a child cannot load (a REPL, a
notebook, ``-c``). All by-value functions of one module share one namespace in each process, which
is the module itself where the process has it, see :mod:`fiber._wire.codec`.

Globals that the by-value functions of one module share in each process, and whose value counts.

A process keeps what its own code made of a global: an initializer's, a counter's, a lock's. In a
notebook or at a prompt, where users define things again all the time, a value that was changed
where the functions come from replaces it. So what goes along with such functions is numbered: the
same number where the sender's value is surely the one it sent before.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import pickle
import secrets
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fiber._wire import frames

#: who sends, the module, and a number for each global; None where the module has a home of its own
News: TypeAlias = "tuple[tuple[str, int], str, dict[str, int]] | None"

_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}

_token = secrets.token_hex(8)
_numbers = itertools.count(1)
_sent: dict[tuple[str, str], tuple[object, int]] = {}
_received: dict[tuple[tuple[str, int], str, str], int] = {}
_homeless: dict[str, dict[str, Any]] = {}


def namespace(module: str) -> dict[str, Any]:
    """The globals that by-value functions of one module share in this process."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded.__dict__
    found = _homeless.get(module)
    if found is None:
        if module not in ("__main__", "__mp_main__"):
            try:
                return __import__(module, fromlist=["_"]).__dict__
            except ImportError:
                # nobody has it here: its functions bring what they need
                pass
        found = _homeless.setdefault(module, {"__name__": module, "__builtins__": __builtins__})
    return found


def outgoing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Globals as they travel: a lock cannot, and each process has one of its own in its place."""
    return {
        name: _Fresh(_LOCKS[type(value)]) if type(value) in _LOCKS else value
        for name, value in values.items()
    }


def news(module: str, values: Mapping[str, Any]) -> News:
    """What receivers need to know of the globals of a module that they cannot load."""
    numbers = {}
    for name, value in values.items():
        mark = _mark(value)
        before = _sent.get((module, name))
        if mark is None or before is None or before[0] != mark:
            before = _sent[module, name] = (mark, next(_numbers))
        numbers[name] = before[1]
    return _me(), module, numbers


def merge(shared: dict[str, Any], values: Mapping[str, Any], told: News) -> None:
    """Take in the globals that came with a function."""
    for name, value in values.items():
        # what is there already has moved on since it was sent
        if name not in shared or (told is not None and _is_newer(name, told)):
            shared[name] = value
    if told is not None:
        sender, module, numbers = told
        for name, number in numbers.items():
            key = sender, module, name
            _received[key] = max(number, _received.get(key, 0))


def _is_newer(name: str, told: tuple[tuple[str, int], str, dict[str, int]]) -> bool:
    sender, module, numbers = told
    known = _received.get((sender, module, name))
    return known is not None and numbers.get(name, 0) > known and sender != _me()


def _me() -> tuple[str, int]:
    # a forked process is another sender
    return _token, os.getpid()


def _mark(value: Any) -> object:
    """Something equal for the same value; None where that cannot be told."""
    if isinstance(value, (types.FunctionType, type, *_LOCKS)):
        return weakref.ref(value)
    stream = io.BytesIO()
    try:
        _PlainPickler(stream, 5).dump(value)
    except Exception:
        return None
    return hashlib.blake2b(stream.getvalue(), digest_size=16).digest()


class _PlainPickler(pickle.Pickler):
    """Pickles numbers, text and containers of them; runs nobody's code."""

    def reducer_override(self, obj: Any) -> Any:
        msg = f"{type(obj).__name__} is not plain"
        raise pickle.PicklingError(msg)


class _Fresh:
    """Pickles as a call."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __reduce__(self) -> Any:
        return self._make, ()


#: buffers below this travel inside the pickle: a view of each would cost more, and keep all alive
_IN_BAND = 4096

_local = threading.local()
_main_by_reference: bool | None = None
_explain: Callable[[ModuleNotFoundError], None] | None = None
# what registers the reducers of libraries that the program has not imported so far
_libraries: tuple[tuple[str, Callable[[], bool]], ...] = ()


def main_by_reference() -> bool:
    """True where children can load this process's ``__main__``: a script or a ``-m`` module.

    A REPL, a notebook, ``-c`` and standard input cannot be loaded again, nor can a package's
    ``__main__`` be, whose code would run; what they define goes by value.
    """
    global _main_by_reference  # noqa: PLW0603 - a fact about the process
    if _main_by_reference is None:
        main = sys.modules["__main__"]
        name = getattr(getattr(main, "__spec__", None), "name", None)
        path = getattr(main, "__file__", None)
        if name is not None:
            _main_by_reference = name != "__main__" and not name.endswith(".__main__")
        elif path is not None:
            # ipython's launch script has no guard, as the stdlib knows as well
            _main_by_reference = Path(path).is_file() and Path(path).stem != "ipython"
        else:
            _main_by_reference = False
    return _main_by_reference


def set_main_by_reference(flag: bool | None) -> None:
    """Say whether children can load ``__main__``, in a process that was told; None: find out."""
    global _main_by_reference  # noqa: PLW0603 - a fact about the process
    _main_by_reference = flag


class Parcel:
    """Carries one pickle, with a ticket for each reference in it to a shared object.

    Args:
        uses: how many times it will be loaded, see :mod:`fiber._objects.references`.
        realm: who loads it, where that is no process of this run.
    """

    def __init__(self, uses: int = 1, realm: str | None = None) -> None:
        self.uses = uses
        self.realm = realm
        #: by handle, so that a second try at pickling the item makes no second ticket
        self.tickets: dict[int, tuple[str, tuple[str, ...], int, int]] = {}


def when_imported(library: str, register: Callable[[], bool]) -> None:
    """Have reducers of a library's types registered before anything is carried that may have them.

    Args:
        library: its module.
        register: called once the program has imported that, until it returns True.
    """
    global _libraries  # noqa: PLW0603 - as a whole: some thread may be going through it
    _libraries = (*_libraries, (library, register))


def _register_reducers() -> None:
    global _libraries  # noqa: PLW0603 - as above
    for library, register in _libraries:
        if library in sys.modules and register():
            _libraries = tuple(one for one in _libraries if one[0] != library)


@contextlib.contextmanager
def carrying(carrier: Any) -> Iterator[None]:
    """Let objects that are pickled meanwhile know what carries them, see :func:`carrier`."""
    before = carry(carrier)
    try:
        yield
    finally:
        _local.carrier = before


def carrier() -> Any:
    """What carries the pickle that is being made on this thread, or None."""
    return getattr(_local, "carrier", None)


def carry(carrier: Any) -> Any:
    """Set what :func:`carrier` says on this thread; what it said before, to be set again."""
    if _libraries and carrier is not None:
        _register_reducers()
    before = getattr(_local, "carrier", None)
    _local.carrier = carrier
    return before


def pickled(value: Any) -> bytes:
    """One pickle with nothing out of band, so that the value may change afterwards.

    Raises:
        Exception: whatever pickling the value raised; neither pickle nor cloudpickle could do it.
    """
    if main_by_reference():
        try:
            return pickle.dumps(value, 5)
        except Exception as error:
            if isinstance(error, RecursionError):
                raise
    stream = io.BytesIO()
    value_pickler()(stream, None).dump(value)
    return stream.getvalue()


def dumps(value: Any) -> list[frames.Buffer]:
    """Segments of an object body, large buffers out of band and uncopied.

    Raises:
        Exception: whatever pickling the value raised; neither pickle nor cloudpickle could do it.
    """
    buffers: list[memoryview] = []
    return frames.pack(split(value, buffers), buffers)


def split(value: Any, buffers: list[memoryview]) -> bytes:
    """A pickle; the buffers that belong out of band are appended to ``buffers``, uncopied.

    Raises:
        Exception: whatever pickling the value raised; neither pickle nor cloudpickle could do it.
    """
    before = len(buffers)

    def place(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND:
            return True
        buffers.append(raw)
        return False

    if main_by_reference():
        try:
            return pickle.dumps(value, 5, buffer_callback=place)
        except Exception as error:
            if isinstance(error, RecursionError):
                raise
            del buffers[before:]
    stream = io.BytesIO()
    value_pickler()(stream, place).dump(value)
    return stream.getvalue()


def loads(body: memoryview) -> Any:
    """The object of a body; its out-of-band buffers are views of the body."""
    pickled, buffers = frames.unpack(body)
    with _explaining():
        return pickle.loads(pickled, buffers=buffers)


def loads_all(pickled: memoryview, buffers: Iterable[frames.Buffer]) -> list[Any]:
    """The objects of several pickles, one behind the other, with their buffers in that order."""
    stream, ordered, found = io.BytesIO(pickled), iter(buffers), []
    with _explaining():
        while stream.tell() < len(pickled):
            # a reader of its own each: what one remembers is nothing to the next
            found.append(pickle.load(stream, buffers=ordered))
    return found


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if _explain is not None:
            _explain(error)
        raise


def explain_missing(explain: Callable[[ModuleNotFoundError], None] | None) -> None:
    """Have more said of modules that are missing where objects are loaded or exceptions sent."""
    global _explain  # noqa: PLW0603 - a fact about the process
    _explain = explain


def _restore_function(function: types.FunctionType, state: Any) -> None:
    from cloudpickle import cloudpickle

    own, slots, told = state
    merge(function.__globals__, slots["__globals__"], told)
    slots["__globals__"] = {}
    cloudpickle._function_setstate(function, (own, slots))  # noqa: SLF001 - cloudpickle's own way to build a function


class _Namespace:
    """Pickles as a call of :func:`~fiber._wire.codec.namespace`."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return namespace, (self._module,)


_pickler_class: type[Any] | None = None


def value_pickler() -> type[Any]:
    """The pickler of cloudpickle with our namespaces, imported on first use."""
    global _pickler_class  # noqa: PLW0603 - a cache
    if _pickler_class is None:
        _pickler_class = _make_pickler()
    return _pickler_class


def _make_pickler() -> type[Any]:
    from cloudpickle import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc] # untyped base
        def __init__(self, stream: io.BytesIO, callback: Callable[[Any], Any] | None) -> None:
            super().__init__(stream, protocol=5, buffer_callback=callback)
            self._homes: dict[str, _Namespace] = {}

        def reducer_override(self, obj: Any) -> Any:
            # the exact type first: this is called for nearly every object
            if isinstance(obj, (type, types.FunctionType)) and _is_in_main(obj):
                return NotImplemented
            return super().reducer_override(obj)

        def _dynamic_function_reduce(self, func: types.FunctionType) -> Any:
            made, arguments, (own, slots), *_ = super()._dynamic_function_reduce(func)
            values = slots["__globals__"]
            slots["__globals__"] = outgoing(values)
            module = func.__globals__.get("__name__")
            if not isinstance(module, str):
                return made, arguments, (own, slots), None, None, cloudpickle._function_setstate  # noqa: SLF001
            told = None
            if module in ("__main__", "__mp_main__") and not main_by_reference():
                told = news(module, values)
            code, _, *rest = arguments
            home = self._homes.setdefault(module, _Namespace(module))
            return made, (code, home, *rest), (own, slots, told), None, None, _restore_function

    return ValuePickler


def _is_in_main(thing: Any) -> bool:
    """True where children find ``thing`` by name in the ``__main__`` that they load."""
    if not main_by_reference() or thing.__module__ != "__main__":
        return False
    found: Any = sys.modules.get("__main__")
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return found is thing


def with_traceback(error: BaseException) -> Any:
    """Something that pickles as the error with its traceback as its cause.

    An error that cannot make the way there and back is replaced by a ``MaybeEncodingError`` with
    the same text, so that no custom exception can break its receiver.
    """
    if isinstance(error, ModuleNotFoundError) and _explain is not None:
        _explain(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = frames.joined(dumps(error))
        _load_error(pickled)
    except Exception as failure:
        pickled = frames.joined(dumps(encoding_error(failure, error)))
    return _Carried(pickled, f'\n"""\n{text}"""')


def encoding_error(failure: BaseException, value: object) -> BaseException:
    """The stdlib's word for a value that could not be sent, for that reason."""
    from multiprocessing import pool

    # the stubs do not know the class; users catch it by this name
    error: BaseException = vars(pool)["MaybeEncodingError"](_Words(failure), _Words(value))
    error.__cause__ = failure
    return error


class _Words:
    """Has the ``repr`` of another object, and one of its own where that fails."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __repr__(self) -> str:
        try:
            return repr(self._thing)
        except Exception as error:
            return f"<{type(self._thing).__name__}, whose repr() raises {type(error).__name__}>"


class _Carried:
    """Pickles as a call of :func:`_revive`."""

    def __init__(self, pickled: bytes, text: str) -> None:
        self._pickled = pickled
        self._text = text

    def __reduce__(self) -> Any:
        # pickled on its own: where it cannot be loaded, what travels with it still can
        return _revive, (self._pickled, self._text)


def _load_error(pickled: bytes) -> BaseException:
    error = loads(memoryview(pickled))
    if not isinstance(error, BaseException):
        msg = f"an exception was unpickled as {type(error).__name__}"
        raise TypeError(msg)
    return error


def _revive(pickled: bytes, text: str) -> BaseException:
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    try:
        error = _load_error(pickled)
    except Exception as failure:
        error = encoding_error(failure, text)
    # not by assignment, which a frozen class refuses
    vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(text))
    return error
