"""Objects to bytes and back: pickle where it can, cloudpickle where it must, tracebacks that travel.

Everything with an importable home goes by reference, as with ``multiprocessing``'s spawn. By value
go lambdas, closures, and what was defined in a ``__main__`` that a child cannot load (a REPL, a
notebook, ``-c``). All by-value functions of one module share one namespace in each process, which
is the module itself where the process has it, so that a global set by an initializer is seen by
later tasks and a counter counts on.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from fiber.transport import wire

_local = threading.local()
_namespaces: dict[str, dict[str, Any]] = {}
_main_by_reference: bool | None = None


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
            launcher = os.path.splitext(os.path.basename(path))[0]
            _main_by_reference = os.path.isfile(path) and launcher != "ipython"
        else:
            _main_by_reference = False
    return _main_by_reference


def set_main_by_reference(flag: bool | None) -> None:
    """Say whether children can load ``__main__``, in a process that was told; None: find out."""
    global _main_by_reference  # noqa: PLW0603 - a fact about the process
    _main_by_reference = flag


@contextlib.contextmanager
def carrying(carrier: Any) -> Iterator[None]:
    """Let objects that are pickled meanwhile know what carries them, see :func:`carrier`."""
    before = getattr(_local, "carrier", None)
    _local.carrier = carrier
    try:
        yield
    finally:
        _local.carrier = before


def carrier() -> Any:
    """What carries the pickle that is being made on this thread, or None."""
    return getattr(_local, "carrier", None)


def dumps(value: Any) -> list[wire.Buffer]:
    """Segments of an object body, large buffers out of band and uncopied.

    Raises:
        Exception: whatever pickling the value raised; neither pickle nor cloudpickle could do it.
    """
    buffers: list[pickle.PickleBuffer] = []
    if main_by_reference():
        try:
            return _pack(pickle.dumps(value, 5, buffer_callback=buffers.append), buffers)
        except Exception as error:  # noqa: BLE001 - any __reduce__ may raise anything
            if isinstance(error, RecursionError):
                raise
            buffers.clear()
    stream = io.BytesIO()
    _value_pickler()(stream, buffers.append).dump(value)
    return _pack(stream.getbuffer(), buffers)


def _pack(pickled: wire.Buffer, buffers: list[pickle.PickleBuffer]) -> list[wire.Buffer]:
    return wire.pack(pickled, [buffer.raw() for buffer in buffers])


def loads(body: memoryview) -> Any:
    """The object of a body; its out-of-band buffers are views of the body."""
    pickled, buffers = wire.unpack(body)
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301 - the peer has proved who it is


def namespace(module: str) -> dict[str, Any]:
    """The globals that by-value functions of one module share in this process."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded.__dict__
    found = _namespaces.get(module)
    if found is None:
        if module not in ("__main__", "__mp_main__"):
            try:
                return __import__(module, fromlist=["_"]).__dict__
            except ImportError:
                # nobody has it here: its functions bring what they need
                found = {}
        found = _namespaces[module] = {"__name__": module, "__builtins__": __builtins__}
    return found


def _restore_function(function: types.FunctionType, state: Any) -> None:
    from cloudpickle import cloudpickle

    own, slots = state
    shared = function.__globals__
    for name, value in slots["__globals__"].items():
        # what is there already has moved on since it was pickled
        shared.setdefault(name, value)
    slots["__globals__"] = {}
    cloudpickle._function_setstate(function, (own, slots))  # noqa: SLF001 - cloudpickle's own way to build a function


def _without_locks(globals_: dict[str, Any]) -> dict[str, Any]:
    """The globals of a by-value function, with fresh locks for a module's own.

    A lock guards what one process has; each namespace makes its own, as importing the module does.
    """
    return {
        name: _FreshLock(_LOCKS[type(value)]) if type(value) in _LOCKS else value
        for name, value in globals_.items()
    }


_LOCKS = {type(threading.Lock()): "Lock", type(threading.RLock()): "RLock"}


class _FreshLock:
    """Pickles as the making of a lock."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __reduce__(self) -> Any:
        return getattr(threading, self._kind), ()


class _Namespace:
    """Pickles as a call of :func:`namespace`."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return namespace, (self._module,)


_pickler_class: type[Any] | None = None


def _value_pickler() -> type[Any]:
    """cloudpickle's pickler with our namespaces, imported on first use."""
    global _pickler_class  # noqa: PLW0603 - a cache
    if _pickler_class is None:
        _pickler_class = _make_pickler()
    return _pickler_class


def _make_pickler() -> type[Any]:
    from cloudpickle import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc] # untyped base
        def __init__(self, stream: io.BytesIO, callback: Callable[[Any], Any]) -> None:
            super().__init__(stream, protocol=5, buffer_callback=callback)
            self._homes: dict[str, _Namespace] = {}

        def reducer_override(self, obj: Any) -> Any:
            # the exact type first: this is called for nearly every object
            if isinstance(obj, (type, types.FunctionType)) and _is_in_main(obj):
                return NotImplemented
            return super().reducer_override(obj)

        def _dynamic_function_reduce(self, func: types.FunctionType) -> Any:
            made, arguments, state, *_ = super()._dynamic_function_reduce(func)
            own, slots = state
            slots["__globals__"] = _without_locks(slots["__globals__"])
            state = own, slots
            module = func.__globals__.get("__name__")
            if not isinstance(module, str):
                return made, arguments, state, None, None, cloudpickle._function_setstate  # noqa: SLF001
            code, _, *rest = arguments
            home = self._homes.setdefault(module, _Namespace(module))
            return made, (code, home, *rest), state, None, None, _restore_function

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
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        loads(memoryview(wire.joined(dumps(error))))
    except Exception as failure:  # noqa: BLE001 - an exception's own __reduce__ may raise anything
        error = encoding_error(failure, error)
    return _Carried(error, f'\n"""\n{text}"""')


def encoding_error(failure: BaseException, value: object) -> BaseException:
    """The stdlib's word for a value that could not be sent, for that reason."""
    from multiprocessing import pool

    # the stubs do not know the class; users catch it by this name
    error: BaseException = vars(pool)["MaybeEncodingError"](failure, value)
    error.__cause__ = failure
    return error


class _Carried:
    """Pickles as a call of :func:`_revive`."""

    def __init__(self, error: BaseException, text: str) -> None:
        self._error = error
        self._text = text

    def __reduce__(self) -> Any:
        return _revive, (self._error, self._text)


def _revive(error: BaseException, text: str) -> BaseException:
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    error.__cause__ = RemoteTraceback(text)
    return error
