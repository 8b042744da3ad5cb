"""Objects to bytes and back: pickle where it can, cloudpickle where it must, tracebacks that travel.

Everything that can be imported goes by reference, as with ``multiprocessing``'s spawn. By value go
lambdas, closures, and what was defined in a ``__main__`` that a child cannot load (a REPL, a
notebook, ``-c``).

By-value functions of one module share one namespace in each process: the module itself where the
process has it, see :func:`namespace`. A process keeps the value that its own code gave to a global
(an initializer's, a counter's, a lock's), save one that the sender has changed since, as users do at
a prompt. So the globals sent along carry version numbers, see :func:`globals_versions`: equal where
the sender's value is surely the one it sent before.

Objects that must know what they are pickled into (handles of shared objects, which count
references) ask :func:`envelope`.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import io
import itertools
import os
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from fiber._wire import frames

#: sender (token, pid), module, version of each global; None where receivers can import the module
GlobalsVersions: TypeAlias = "tuple[tuple[str, int], str, dict[str, int]] | None"

_Reducer: TypeAlias = Callable[[Any], Any]

_LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}

_token = os.urandom(8).hex()
_numbers = itertools.count(1)
_sent: dict[tuple[str, str], tuple[object, int]] = {}
_received: dict[tuple[tuple[str, int], str, str], int] = {}
_unimportable: dict[str, dict[str, Any]] = {}


def namespace(module: str) -> dict[str, Any]:
    """Globals shared by the by-value functions of one module in this process."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded.__dict__
    found = _unimportable.get(module)
    if found is None:
        if module not in ("__main__", "__mp_main__"):
            try:
                return __import__(module, fromlist=["_"]).__dict__
            except ImportError:
                # not installed here: its functions bring the globals that they need
                pass
        found = _unimportable.setdefault(module, {"__name__": module, "__builtins__": __builtins__})
    return found


def outgoing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Globals as they are sent: each lock is replaced by a new one in the receiver."""
    return {
        name: _NewLock(_LOCKS[type(value)]) if type(value) in _LOCKS else value
        for name, value in values.items()
    }


def globals_versions(module: str, values: Mapping[str, Any]) -> GlobalsVersions:
    """Version numbers of globals, sent with functions of a module that receivers cannot load."""
    numbers = {}
    for name, value in values.items():
        fingerprint = _fingerprint(value)
        before = _sent.get((module, name))
        if fingerprint is None or before is None or before[0] != fingerprint:
            before = _sent[module, name] = (fingerprint, next(_numbers))
        numbers[name] = before[1]
    return _sender_id(), module, numbers


def merge(shared: dict[str, Any], values: Mapping[str, Any], versions: GlobalsVersions) -> None:
    """Update a namespace with the globals that came with a function."""
    for name, value in values.items():
        # a value that exists may have been changed here since it was sent
        if name not in shared or (versions is not None and _is_newer(name, versions)):
            if isinstance(value, _LeftOut):
                value.complain(name)
            shared[name] = value
    if versions is not None:
        sender, module, numbers = versions
        for name, number in numbers.items():
            key = sender, module, name
            _received[key] = max(number, _received.get(key, 0))


def _is_newer(name: str, versions: tuple[tuple[str, int], str, dict[str, int]]) -> bool:
    sender, module, numbers = versions
    known = _received.get((sender, module, name))
    return known is not None and numbers.get(name, 0) > known and sender != _sender_id()


def _sender_id() -> tuple[str, int]:
    # the pid, since a forked process is another sender
    return _token, os.getpid()


def _fingerprint(value: Any) -> object:
    """Value that is equal for equal globals; None where that cannot be decided."""
    if isinstance(value, (types.FunctionType, type, *_LOCKS)):
        return weakref.ref(value)
    stream = io.BytesIO()
    try:
        _PlainPickler(stream, 5).dump(value)
    except Exception:
        return None
    return hashlib.blake2b(stream.getvalue(), digest_size=16).digest()


class _PlainPickler(pickle.Pickler):
    """Pickler of numbers, text and containers of them only, so that no user code runs."""

    def reducer_override(self, obj: Any) -> Any:
        msg = f"{type(obj).__name__} is not plain"
        raise pickle.PicklingError(msg)


class _NewLock:
    """Stand-in for a lock: unpickles as a new, free one."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __reduce__(self) -> Any:
        return self._make, ()


#: buffers below this travel inside the pickle: a view of each would cost more, and keep all alive
_IN_BAND = 4096

_local = threading.local()
_main_by_reference: bool | None = None
_missing_module_hook: Callable[[ModuleNotFoundError], None] | None = None
# registrations of reducers for libraries that the program has not imported so far
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
    """Set the answer of :func:`main_by_reference` in a child; None: determine it again."""
    global _main_by_reference  # noqa: PLW0603 - a fact about the process
    _main_by_reference = flag


class _Writable(Protocol):
    def write(self, data: Any, /) -> Any: ...


Stream = TypeVar("Stream", bound=_Writable)


#: process, its addresses, object and id, see :mod:`fiber._objects.address`
_Reference: TypeAlias = tuple[str, tuple[str, ...], int, int]


class MessageEnvelope:
    """Envelope of one message: collects the references to shared objects in its pickle.

    Args:
        uses: number of times that the pickle will be loaded, see :mod:`fiber._objects.address`.
        auth_domain: authentication domain of the receiver; None for a process of this run.
    """

    __slots__ = ("__weakref__", "_void", "auth_domain", "references", "uses")

    def __init__(self, uses: int = 1, auth_domain: str | None = None) -> None:
        self.uses = uses
        self.auth_domain = auth_domain
        #: by id of the object, so that pickling it twice makes one reference
        self.references: dict[int, _Reference] = {}
        self._void: Callable[[Iterable[_Reference]], None] | None = None

    def refer(
        self, key: int, reference: _Reference, void: Callable[[Iterable[_Reference]], None]
    ) -> None:
        """Add a reference; ``void`` is called with those that nobody will load."""
        self.references[key] = reference
        self._void = void

    def void(self, kept: int = 0) -> None:
        """Void references, save the first ones: nobody will load the pickle that they were made for."""
        voided = [self.references.pop(key) for key in list(self.references)[kept:]]
        if voided and self._void is not None:
            self._void(voided)


def register_when_imported(library: str, register: Callable[[], bool]) -> None:
    """Register reducers of a library's types once the program has imported it.

    Args:
        library: the module's name.
        register: called before pickling into an envelope once the module is imported, until it
            returns True.
    """
    global _libraries  # noqa: PLW0603 - replaced, since another thread may iterate over it
    _libraries = (*_libraries, (library, register))


def _register_reducers(library: str, register: Callable[[], bool]) -> None:
    global _libraries  # noqa: PLW0603 - as above
    if register():
        _libraries = tuple(one for one in _libraries if one[0] != library)


@contextlib.contextmanager
def pickling_into(envelope: Any) -> Iterator[None]:
    """Set the envelope of what is pickled on this thread in the ``with`` block."""
    before = set_envelope(envelope)
    try:
        yield
    finally:
        _local.envelope = before


def envelope() -> Any:
    """Envelope of the pickle being made on this thread (a message, a child, a shared block), or None."""
    return getattr(_local, "envelope", None)


def set_envelope(envelope: Any) -> Any:
    """Set this thread's envelope; returns the former one, to be set again."""
    if envelope is not None:
        for library, register in _libraries:
            if library in sys.modules:
                _register_reducers(library, register)
    before = getattr(_local, "envelope", None)
    _local.envelope = envelope
    return before


def _reference_count() -> int:
    envelope = getattr(_local, "envelope", None)
    return len(envelope.references) if isinstance(envelope, MessageEnvelope) else 0


def _void_references_after(count: int) -> None:
    """Void those of a pickle that is not sent: the next one of the same value may refer to other objects."""
    envelope = getattr(_local, "envelope", None)
    if isinstance(envelope, MessageEnvelope):
        envelope.void(count)


def pickled(value: Any, envelope: Any = None) -> bytes:
    """Pickle with nothing out of band, so that the value may change afterwards.

    Args:
        value: the value.
        envelope: that of the pickle; the present one of this thread if None.

    Raises:
        Exception: raised by the value's pickling, with pickle and then with cloudpickle.
    """
    before = None if envelope is None else set_envelope(envelope)
    try:
        if _main_by_reference or main_by_reference():
            references = 0 if envelope is not None else _reference_count()
            try:
                return pickle.dumps(value, 5)
            except Exception as error:
                if isinstance(error, RecursionError):
                    raise
                _void_references_after(references)
        return _pickled_by_value(io.BytesIO, value, None).getvalue()
    finally:
        if envelope is not None:
            _local.envelope = before


def pickled_into(make: Callable[[], Stream], value: Any) -> Stream:
    """A new stream with a pickle, written in pieces as they are made: large ones are not copied.

    Args:
        make: makes a stream, perhaps a second one where cloudpickle is needed.
        value: the value.

    Raises:
        Exception: raised by the value's pickling, with pickle and then with cloudpickle.
    """
    if main_by_reference():
        try:
            stream = make()
            pickle.Pickler(stream, 5).dump(value)
        except Exception as error:
            if isinstance(error, RecursionError):
                raise
            # the message is this pickle alone
            _void_references_after(0)
        else:
            return stream
    return _pickled_by_value(make, value, None)


def dumps(value: Any) -> list[frames.Buffer]:
    """Segments of an object body; large buffers are out of band and not copied.

    Raises:
        Exception: raised by the value's pickling, with pickle and then with cloudpickle.
    """
    buffers: list[memoryview] = []
    return frames.pack(split(value, buffers), buffers)


def split(
    value: Any, buffers: list[memoryview], reducers: Mapping[type, _Reducer] | None = None
) -> bytes:
    """Pickle of a value; its out-of-band buffers are appended to ``buffers``, not copied.

    Args:
        value: the value.
        buffers: list to append to.
        reducers: by type; they precede those that are registered.

    Raises:
        Exception: raised by the value's pickling, with pickle and then with cloudpickle.
    """
    before = len(buffers)

    def place(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND:
            return True
        buffers.append(raw)
        return False

    if _main_by_reference or main_by_reference():
        try:
            if reducers is None:
                return pickle.dumps(value, 5, buffer_callback=place)
            stream = io.BytesIO()
            plain = pickle.Pickler(stream, 5, buffer_callback=place)
            plain.dispatch_table = {**copyreg.dispatch_table, **reducers}
            plain.dump(value)
            return stream.getvalue()
        except Exception as error:
            if isinstance(error, RecursionError):
                raise
            _void_references_after(0)

    def make() -> io.BytesIO:
        del buffers[before:]
        return io.BytesIO()

    return _pickled_by_value(make, value, place, reducers).getvalue()


# without a look-up in the struct, for each task
_PLAIN_HEAD, _read_plain = frames.NO_BUFFERS.size, frames.NO_BUFFERS.unpack_from


def loads(body: memoryview) -> Any:
    """Object of a body; its out-of-band buffers are views of the body."""
    size = len(body) - _PLAIN_HEAD
    try:
        # most bodies have no buffers
        if size >= 0 and _read_plain(body) == (0, size):
            return pickle.loads(body[_PLAIN_HEAD:], buffers=())
        pickled, buffers = frames.unpack(body)
        return pickle.loads(pickled, buffers=buffers)
    except ModuleNotFoundError as error:
        _explain_missing(error)
        raise


def loads_all(pickled: memoryview, buffers: Iterable[frames.Buffer]) -> list[Any]:
    """Objects of several concatenated pickles, whose buffers follow in the same order."""
    stream, ordered, found = io.BytesIO(pickled), iter(buffers), []
    try:
        while stream.tell() < len(pickled):
            # an unpickler each: memos are not shared between them
            found.append(pickle.load(stream, buffers=ordered))
    except ModuleNotFoundError as error:
        _explain_missing(error)
        raise
    return found


def _explain_missing(error: ModuleNotFoundError) -> None:
    if _missing_module_hook is not None:
        _missing_module_hook(error)


def set_missing_module_hook(explain: Callable[[ModuleNotFoundError], None] | None) -> None:
    """Set a function that adds advice to a ModuleNotFoundError of unpickling, or of one sent."""
    global _missing_module_hook  # noqa: PLW0603 - a fact about the process
    _missing_module_hook = explain


def _restore_function(function: types.FunctionType, state: Any) -> None:
    from cloudpickle import cloudpickle

    own, slots, versions = state
    merge(function.__globals__, slots["__globals__"], versions)
    slots["__globals__"] = {}
    cloudpickle._function_setstate(function, (own, slots))  # noqa: SLF001 - cloudpickle's own way to build a function


class _NamespaceReference:
    """Stand-in for a namespace: unpickles as a call of :func:`namespace`."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return namespace, (self._module,)


def _pickled_by_value(
    make: Callable[[], Stream],
    value: Any,
    place: Callable[[Any], Any] | None,
    reducers: Mapping[type, _Reducer] | None = None,
) -> Stream:
    """Pickle with cloudpickle, into a new stream.

    Globals of functions that cannot be pickled are left out where the receiver loads the function's
    module, and so has its own.
    """
    kind = value_pickler()
    stream = make()
    pickler = kind(stream, place, reducers)
    references = _reference_count()
    try:
        pickler.dump(value)
    except RecursionError:
        raise
    except Exception as error:
        if not pickler.has_globals:
            raise
        _void_references_after(references)
        stream = make()
        try:
            kind(stream, place, reducers, tried=set()).dump(value)
        except Exception:
            raise error from None
    return stream


class _LeftOut:
    """Stand-in for a global that cannot be pickled."""

    def __init__(self, error: BaseException) -> None:
        self._why = f"{type(error).__name__}: {error}"

    def complain(self, name: str) -> None:
        """Raise an error for a global that the receiver lacks as well."""
        msg = (
            f"the global {name!r} of a function cannot be sent ({self._why}), and its module does not "
            'define it above `if __name__ == "__main__":`; define it there, or pass what the function '
            "needs as arguments"
        )
        raise pickle.UnpicklingError(msg)


_pickler_class: type[Any] | None = None


def value_pickler() -> type[Any]:
    """Subclass of cloudpickle's Pickler with our namespaces; cloudpickle is imported on first use."""
    global _pickler_class  # noqa: PLW0603 - a cache
    if _pickler_class is None:
        _pickler_class = _make_pickler()
    return _pickler_class


def _make_pickler() -> type[Any]:
    from cloudpickle import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc] # untyped base
        def __init__(
            self,
            stream: io.BytesIO,
            callback: Callable[[Any], Any] | None,
            reducers: Mapping[type, _Reducer] | None = None,
            tried: set[int] | None = None,
        ) -> None:
            if reducers is not None:
                # its table is read while it is made, and not again
                self.dispatch_table: Any = {**cloudpickle.Pickler.dispatch_table, **reducers}
            super().__init__(stream, protocol=5, buffer_callback=callback)
            self._namespaces: dict[str, _NamespaceReference] = {}
            self._reducers = reducers
            #: globals that are being tried, by id; None where they are sent untried
            self._tried = tried
            #: True where a function was met whose globals its receiver may have
            self.has_globals = False

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
            versions = None
            if module in ("__main__", "__mp_main__") and not main_by_reference():
                versions = globals_versions(module, values)
            else:
                self.has_globals = self.has_globals or bool(values)
                if self._tried is not None:
                    slots["__globals__"] = {
                        name: self._or_left_out(value, self._tried)
                        for name, value in slots["__globals__"].items()
                    }
            code, _, *rest = arguments
            shared = self._namespaces.setdefault(module, _NamespaceReference(module))
            return (
                made,
                (code, shared, *rest),
                (own, slots, versions),
                None,
                None,
                _restore_function,
            )

        def _or_left_out(self, value: Any, tried: set[int]) -> Any:
            if id(value) in tried or isinstance(value, (types.FunctionType, type)):
                # functions have globals of their own, and may refer to each other
                return value
            tried.add(id(value))
            references = _reference_count()
            try:
                # no buffer is copied
                trial = ValuePickler(io.BytesIO(), lambda _: False, self._reducers, tried)
                trial.dump(value)
            except Exception as error:
                return _LeftOut(error)
            finally:
                tried.discard(id(value))
                _void_references_after(references)
            return value

    return ValuePickler


def _is_in_main(thing: Any) -> bool:
    """True where children can look ``thing`` up by name in the ``__main__`` that they load."""
    if not main_by_reference() or thing.__module__ != "__main__":
        return False
    found: Any = sys.modules.get("__main__")
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return found is thing


def with_traceback(error: BaseException) -> Any:
    """Stand-in for an error that unpickles as the error, with its traceback as its cause.

    One whose class cannot be called with its ``args``, as where ``__init__`` takes others, is made
    again without that call. An error that cannot be pickled and unpickled is replaced by a
    ``MaybeEncodingError`` with the same text, so that no custom exception can break its receiver.
    """
    if isinstance(error, ModuleNotFoundError):
        _explain_missing(error)
    trace = from_users_frames(error.__traceback__)
    if trace is None and type(error.__cause__).__name__ == "RemoteTraceback":
        # it came as it is, and was raised again by Fiber alone
        return _PickledError(_pickled_error(error), str(error.__cause__))
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _PickledError(_pickled_error(error), f'\n"""\n{text}"""')


def from_users_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The part of a traceback from the first frame on that is neither of Fiber nor of cloudpickle."""
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("fiber", "cloudpickle"):
            break
        trace = trace.tb_next
    return trace


def encoding_error(failure: BaseException, value: object) -> BaseException:
    """The stdlib's ``MaybeEncodingError`` for a value that could not be pickled."""
    from multiprocessing import pool

    # the stubs do not know the class; users catch it by this name
    error: BaseException = vars(pool)["MaybeEncodingError"](_SafeRepr(failure), _SafeRepr(value))
    error.__cause__ = failure
    return error


class _SafeRepr:
    """Stand-in with the ``repr`` of another object, or a substitute where that raises."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __repr__(self) -> str:
        try:
            return repr(self._thing)
        except Exception as error:
            return f"<{type(self._thing).__name__}, whose repr() raises {type(error).__name__}>"


class _RemadeError:
    """Stand-in for an error: unpickles as a call of :func:`_remake_error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        args = _with_stand_ins(self._error.args)
        return _remake_error, (type(self._error), args, vars(self._error))


def _with_stand_ins(value: Any) -> Any:
    """The value, with stand-ins for the errors in it, as a group has them."""
    if type(value) in (list, tuple):
        return type(value)(map(_with_stand_ins, value))
    is_plain = isinstance(value, BaseException) and _is_reduced_by_args(value)
    return _RemadeError(value) if is_plain else value


def _is_reduced_by_args(error: BaseException) -> bool:
    return type(error).__reduce__ is BaseException.__reduce__


def _remake_error(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _pickled_error(error: BaseException) -> bytes:
    """Pickle that can be loaded: of the error, of a stand-in, or of a ``MaybeEncodingError``."""
    ways: list[Any] = [error]
    if _is_reduced_by_args(error):
        ways.append(_RemadeError(error))
    failures = []
    for way in ways:
        try:
            pickled = frames.joined(dumps(way))
            _load_error(pickled)
        except Exception as failure:
            failures.append(failure)
        else:
            return pickled
    return frames.joined(dumps(encoding_error(failures[0], error)))


class _PickledError:
    """Stand-in for an error: unpickles as a call of :func:`_load_pickled_error`."""

    def __init__(self, pickled: bytes, text: str) -> None:
        self._pickled = pickled
        self._text = text

    def __reduce__(self) -> Any:
        # pickled apart, so that the rest of a message loads where this does not
        return _load_pickled_error, (self._pickled, self._text)


def _load_error(pickled: bytes) -> BaseException:
    error = loads(memoryview(pickled))
    if not isinstance(error, BaseException):
        msg = f"an exception was unpickled as {type(error).__name__}"
        raise TypeError(msg)
    return error


def _load_pickled_error(pickled: bytes, text: str) -> BaseException:
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    try:
        error = _load_error(pickled)
    except Exception as failure:
        error = encoding_error(failure, text)
    # not by assignment, which a frozen class refuses
    vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(text))
    return error
