"""Managers of registered types: proxies, the server in the manager's process, and ``BaseManager``.

A :class:`Server` makes objects and serves them in the process that they live in. :class:`BaseManager` starts that
process, or connects to one. A :class:`BaseProxy` sends the calls; proxy classes are also made of method names.
"""

from __future__ import annotations

import array
import functools
import hmac
import logging
import queue
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import AuthenticationError, ProcessError, process, util
from multiprocessing.managers import Namespace, State, Value  # type: ignore[attr-defined] # the stubs do not tell
from typing import Any, ClassVar, NoReturn, Protocol

from fiber._objects import store
from fiber._objects.address import NO_REFERENCE, Address, Kind
from fiber._objects.auth_listener import AuthListener, connect_to, open_listener
from fiber._objects.handle import Handle, SharedObject
from fiber._objects.managed.calls import CreatedObject, load_proxytype
from fiber._objects.managed.referent import CallerThreads, NewReferent, Referent
from fiber.connection import Connection, Pipe
from fiber.exceptions import TransportError
from fiber.process import Process

__all__ = [
    "AutoProxy",
    "BaseManager",
    "BaseProxy",
    "MakeProxyType",
    "RebuildProxy",
    "Server",
    "State",
    "Token",
]


def secret(authkey: bytes) -> Any:
    """The stdlib's wrapper of a key, which is pickled for children only."""
    return vars(process)["AuthenticationString"](authkey)


class Token:
    """Identity of a managed object."""

    __slots__ = ("_reference_id", "address", "id", "typeid")

    def __init__(
        self,
        typeid: str,
        address: Address,
        id: str,  # noqa: A002 - the stdlib's name
    ) -> None:
        self.typeid = typeid
        self.address = address
        self.id = id
        self._reference_id = NO_REFERENCE

    @classmethod
    def of(cls, made: CreatedObject) -> Token:
        """The token of an object that a manager has just made."""
        return cls(made.typeid, made.address, f"{made.address.target:x}")

    def sent(self, address: Any, reference_id: int) -> Token:
        """A copy for the pickle of a proxy, with the id of the reference that the pickle holds."""
        token = Token(self.typeid, address, self.id)
        token._reference_id = reference_id
        return token

    def take_reference_id(self) -> int:
        """Remove the reference id, for the one proxy that uses it."""
        reference_id, self._reference_id = self._reference_id, NO_REFERENCE
        return reference_id

    def __getstate__(self) -> tuple[Any, ...]:
        return self.typeid, self.address, self.id, self._reference_id

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.typeid, self.address, self.id, self._reference_id = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(typeid={self.typeid!r}, address={self.address!r}, id={self.id!r})"


class Callee(SharedObject, Protocol):
    """A managed object, at its owner or in another process."""

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method and wait for its value; a ``CreatedObject`` where it is a managed object."""


class BaseProxy(Handle):
    """Proxy of a managed object; as ``multiprocessing.managers.BaseProxy``.

    Method calls are sent to the process that the object lives in, whichever process they come from.
    The object lives as long as there is a proxy for it anywhere, one that is on its way in an
    argument or in another managed object included.
    """

    _object: Callee
    #: factory of proxies whose class is made of method names
    _auto: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        token: Token,
        serializer: str,
        manager: BaseManager | None = None,
        authkey: bytes | None = None,
        exposed: Iterable[str] | None = None,
        incref: bool = True,
        manager_owned: bool = False,
    ) -> None:
        self._token = token
        self._id = token.id
        self._serializer = serializer
        self._manager = manager
        if authkey is not None:
            self._authkey = secret(authkey)
        elif manager is not None:
            self._authkey = manager._authkey  # noqa: SLF001 - a proxy is a part of its manager
        else:
            self._authkey = process.current_process().authkey
        taken: Any = store.current().hold(token.address, 0, token.take_reference_id())
        self._attach(taken, 0)

    def _callmethod(
        self,
        methodname: str,
        args: tuple[Any, ...] = (),
        kwds: Mapping[str, Any] = {},  # the stdlib's default, never changed
    ) -> Any:
        """Call a method of the managed object; a copy of its value, or a proxy.

        Raises:
            Exception: that of the method, the remote traceback as its cause.
            multiprocessing.managers.RemoteError: there is no such method, or its value cannot be
                pickled.
            PeerLostError: the manager's process is gone; an ``EOFError`` and a ``ConnectionError``.
        """
        value = self._object.call_method(methodname, args, kwds)
        return self._proxy_of(value) if isinstance(value, CreatedObject) else value

    def _proxy_of(self, created: CreatedObject) -> Any:
        """Proxy of a managed object that a method created."""
        known = None if self._manager is None else self._manager._registry.get(created.typeid)  # noqa: SLF001 - see above
        proxytype = load_proxytype(created) if known is None else known[-1]
        return proxytype(
            Token.of(created),
            self._serializer,
            manager=self._manager,
            authkey=self._authkey,
            exposed=created.exposed,
        )

    def _getvalue(self) -> Any:
        """A copy of the managed object."""
        return self._callmethod("#GETVALUE")

    def __reduce__(self) -> Any:
        token = self._token.sent(self._address(), self._reference_id())
        if getattr(self, "_isauto", False):
            exposed = self._exposed_  # type: ignore[attr-defined] # made with it
            auto = type(self)._auto  # noqa: SLF001 - its own
            return RebuildProxy, (auto, token, self._serializer, {"exposed": exposed})
        made = vars(type(self)).get("_made_as")
        if made is not None:
            return _rebuild_made, (*made, token, self._serializer)
        return RebuildProxy, (type(self), token, self._serializer, {})

    def __deepcopy__(self, memo: Any) -> Any:
        return self._getvalue()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object, typeid {self._token.typeid!r} at {id(self):#x}>"

    def __str__(self) -> str:
        try:
            return str(self._callmethod("__repr__"))
        except Exception:
            return repr(self)[:-1] + "; '__str__()' failed>"


def RebuildProxy(  # noqa: N802 - the stdlib's name
    func: Callable[..., Any], token: Token, serializer: str, kwds: dict[str, Any]
) -> Any:
    """Proxy that is unpickled."""
    return func(token, serializer, **kwds)


def _rebuild_made(
    make: Callable[..., Any], name: str, exposed: tuple[str, ...], token: Token, serializer: str
) -> Any:
    """Proxy that is unpickled, of a class that was made of method names."""
    return make(name, exposed)(token, serializer)


_made: dict[tuple[str, tuple[str, ...], type[Any]], type[Any]] = {}


def make_type(
    name: str, exposed: Iterable[str], base: type[BaseProxy], make: Callable[..., Any]
) -> type[Any]:
    """A class with a method for each name, which passes its arguments to ``_callmethod``.

    Args:
        name: name of the class.
        exposed: the method names.
        base: base class.
        make: makes the same class of its name and the method names, when unpickled.
    """
    methods = tuple(exposed)
    key = name, methods, base
    found = _made.get(key)
    if found is None:
        body: dict[str, Any] = {method: _method(method) for method in methods}
        body.update(_exposed_=methods, _made_as=(make, name, methods))
        found = _made[key] = type(name, (base,), body)
    return found


def auto_proxy(
    make: Callable[..., Any],
    token: Token,
    serializer: str,
    exposed: Iterable[str] | None,
    **kwds: Any,
) -> Any:
    """Proxy of the class that ``make`` makes of the names of the exposed methods."""
    if exposed is None:
        exposed = BaseProxy(token, serializer)._callmethod("#METHODS")  # noqa: SLF001 - its own
    made = make(f"AutoProxy[{token.typeid}]", tuple(exposed))
    proxy = made(token, serializer, **kwds)
    proxy._isauto = True  # noqa: SLF001 - by which it is pickled
    return proxy


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwds: Any) -> Any:
        return self._callmethod(name, args, kwds)

    method.__name__ = method.__qualname__ = name
    return method


def MakeProxyType(  # noqa: N802 - the stdlib's name
    name: str, exposed: Iterable[str]
) -> type[Any]:
    """A class of proxies with the methods ``exposed``."""
    return make_type(name, exposed, BaseProxy, MakeProxyType)


def AutoProxy(  # noqa: N802 - the stdlib's name
    token: Token,
    serializer: str,
    manager: BaseManager | None = None,
    authkey: bytes | None = None,
    exposed: Iterable[str] | None = None,
    incref: bool = True,
    manager_owned: bool = False,  # noqa: ARG001 - the stdlib's signature
) -> Any:
    """A proxy with the methods ``exposed``; if omitted, all that the managed object exposes."""
    kwds = {"manager": manager, "authkey": authkey, "incref": incref}
    return auto_proxy(MakeProxyType, token, serializer, exposed, **kwds)


BaseProxy._auto = AutoProxy  # noqa: SLF001 - it is made of BaseProxy


_LOCKS = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Semaphore,
)


def rollback(obj: Any, name: str, value: Any) -> None:
    """Undo a method whose caller died or was interrupted; on the thread that called it.

    An item that was got goes back to its queue, and a lock that was acquired is released.

    Args:
        obj: the object; of types other than the standard library's nothing is undone.
        name: the method's name.
        value: its value.
    """
    if type(obj) is queue.Queue and name in {"get", "get_nowait"}:
        with obj.mutex:
            # to the front, where it was; it still counts as unfinished
            obj.queue.appendleft(value)
            obj.not_empty.notify()
    # wait() returns with the lock acquired, notified or not
    waited = name == "wait" and isinstance(obj, threading.Condition)
    if waited or (name == "acquire" and value and isinstance(obj, _LOCKS)):
        obj.release()


_TEXT = re.compile(r"([0-9a-f.]+)/([0-9a-f]+)@([a-z+]+://.+)")
#: types whose methods have the same effect on any thread
_THREAD_NEUTRAL = frozenset(
    {array.array, dict, list, set, queue.Queue, threading.Event, Namespace, Value}
)


class Server:
    """Makes objects and serves them until ``shutdown`` is called.

    Args:
        registry: the types by name: callable, exposed, method_to_typeid, proxytype.
        address: address for managers that connect; None for any address.
        authkey: key that they must prove to know.
        serializer: ``"pickle"``.
        is_open: True to let managers of other programs connect.

    Raises:
        OSError: the address cannot be bound.
    """

    #: methods that managers may call on the server
    public: tuple[str, ...] = ("create", "debug_info", "number_of_objects", "prove", "shutdown")

    def __init__(
        self,
        registry: Mapping[str, tuple[Any, ...]],
        address: Any,
        authkey: Any,
        serializer: str,
        *,
        is_open: bool = True,
    ) -> None:
        if not isinstance(authkey, bytes):
            msg = f"Authkey {authkey!r} is type {type(authkey)!s}, not bytes"
            raise TypeError(msg)
        self.registry = registry
        self.authkey = secret(authkey)
        self._stop = threading.Event()
        self._store = store.current()
        self._caller_threads = CallerThreads(self._store)
        self._referents: weakref.WeakSet[Referent] = weakref.WeakSet()
        self._self_referent = Referent(
            self._store, self._caller_threads, self, self.public, errors_as_text=True
        )
        #: token of the server itself, for managers of this run
        self.token = Token(
            "#server", self._self_referent.address, f"{self._self_referent.target:x}"
        )
        # sent to connecting managers; also keeps the server alive without any
        self._own = BaseProxy(self.token, serializer, authkey=authkey)
        self._listener: AuthListener | None = None
        #: address for ``connect``
        self.address: Any = text_of(self._self_referent.address)
        if is_open:
            self._listener = open_listener(address, None, bytes(authkey), lambda _: self._own)
            self.address = self._listener.address

    def serve_forever(self) -> NoReturn:
        """Serve until a manager calls ``shutdown``; then exit."""
        vars(process.current_process())["_manager_server"] = self
        try:
            self._stop.wait()
        except (KeyboardInterrupt, SystemExit):
            pass
        finally:
            self.close()
        raise SystemExit(0)

    def close(self) -> None:
        """Make no more objects."""
        self._stop.set()
        if self._listener is not None:
            self._listener.close()
        self._own._release()  # noqa: SLF001 - its own
        self._caller_threads.close()

    # -- methods for managers; on caller threads

    def create(self, typeid: str, /, *args: Any, **kwds: Any) -> NewReferent:
        """Make an object of a registered type."""
        make, exposed, typeids, proxytype = self.registry[typeid]
        if make is not None:
            obj = make(*args, **kwds)
        elif kwds or len(args) != 1:
            msg = "Without callable, must have one non-keyword argument"
            raise ValueError(msg)
        else:
            obj = args[0]
        if exposed is None:
            exposed = public_methods(obj)
        if typeids is not None:
            if not isinstance(typeids, dict):
                msg = f"Method_to_typeid {typeids!r}: type {type(typeids)!s}, not dict"
                raise TypeError(msg)
            exposed = [*exposed, *typeids]
        referent = Referent(
            self._store,
            self._caller_threads,
            obj,
            exposed,
            typeids=typeids,
            make_referent=self.create,
            thread_neutral=type(obj) in _THREAD_NEUTRAL,
            rollback=rollback,
        )
        self._referents.add(referent)
        return NewReferent(referent, typeid, tuple(exposed), proxytype)

    def number_of_objects(self) -> int:
        """Number of objects that any process has a proxy of."""
        return len(self._referents)

    def debug_info(self) -> str:
        """Text that lists the objects and how many processes hold each."""
        found = sorted(self._referents, key=lambda referent: referent.target)
        return "\n".join(referent.debug_text() for referent in found)

    def prove(self, digest: bytes) -> None:
        """Check that a connecting manager knows the authkey."""
        if not hmac.compare_digest(digest, proof(self.authkey, self.address)):
            msg = "digest received was wrong"
            raise AuthenticationError(msg)

    def shutdown(self) -> None:
        """End the server."""
        # the answer goes out first: an ending process sends what is queued
        self._stop.set()


def public_methods(obj: Any) -> list[str]:
    """Names of the methods of an object that do not begin with ``_``."""
    return [n for n in dir(obj) if not n.startswith("_") and callable(getattr(obj, n))]


def proof(authkey: bytes, address: str) -> bytes:
    """Proof of knowing the authkey of the manager at an address: an HMAC-SHA256 of the address."""
    return hmac.digest(authkey, f"fiber manager {address}".encode(), "sha256")


def text_of(address: Address) -> str:
    """Address of a server as users see it: ``ident/target@url,url``."""
    return f"{address.ident}/{address.target:x}@{','.join(address.urls)}"


def address_of(text: Any) -> Address | None:
    """Address that :func:`text_of` wrote; None for anything else."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    return Address(match[1], tuple(match[3].split(",")), int(match[2], 16), Kind.REFERENT)


log = logging.getLogger("fiber")


class BaseManager:
    """Starts a process for objects that are used from others, or connects to one that runs.

    The same as ``multiprocessing.managers.BaseManager``. Inside a run no address is needed: any
    process that gets a proxy talks to the manager's process directly.

    Args:
        address: address that the manager listens at for others that :meth:`connect`, or that this
            one connects to: a ``(host, port)`` tuple or the path of a socket. None for any address.
        authkey: key that connecting managers must prove to know. Where neither it nor an address is
            given, the manager is for this run only.
        serializer: ``"pickle"``.
        ctx: the context whose processes are started.
        shutdown_timeout: seconds that the process has to end before it is terminated.
    """

    _registry: Mapping[str, tuple[Any, Any, Any, Any]] = {}
    _Server = Server

    #: end the manager's process; set by :meth:`start`
    shutdown: Callable[[], Any]

    def __init__(
        self,
        address: Any = None,
        authkey: bytes | None = None,
        serializer: str = "pickle",
        ctx: Any = None,
        *,
        shutdown_timeout: float = 1.0,
    ) -> None:
        if serializer == "xmlrpclib":
            msg = "managers of fiber speak pickle only, between processes that proved a common key"
            raise ValueError(msg)
        if serializer != "pickle":
            raise KeyError(serializer)
        self._is_open = address is not None or authkey is not None
        if authkey is None:
            authkey = process.current_process().authkey
        self._address = address
        self._authkey = secret(authkey)
        self._state = State()
        self._state.value = State.INITIAL
        self._serializer = serializer
        self._ctx = ctx
        self._shutdown_timeout = shutdown_timeout
        self._process: Any = None
        self._server_proxy: BaseProxy | None = None
        self._changing = threading.RLock()

    # -- the process

    def start(self, initializer: Any = None, initargs: Sequence[Any] = ()) -> None:
        """Start the manager's process.

        Args:
            initializer: called in it before anything else.
            initargs: its arguments.

        Raises:
            ProcessError: it was started or shut down before.
            EOFError: the process ended before it served; see its output.
        """
        with self._changing:
            self._check_initial()
            if initializer is not None and not callable(initializer):
                msg = "initializer must be a callable"
                raise TypeError(msg)
            reader, writer = Pipe(duplex=False)
            with reader:
                with writer:
                    self._process = self._new_process(writer, initializer, initargs)
                    self._process.start()
                try:
                    self._address, token = self._receive_address(reader)
                    self._server_proxy = BaseProxy(token, self._serializer, authkey=self._authkey)
                except BaseException:
                    # nobody else would end it, and the end of this process would wait for it
                    self._process.kill()
                    self._process.join()
                    raise
            self._state.value = State.STARTED
            self.shutdown = util.Finalize(
                self,
                _end,
                args=(self._process, self._server_proxy, self._state, self._shutdown_timeout),
                exitpriority=0,
            )

    def _new_process(
        self,
        writer: Connection,
        initializer: Callable[..., Any] | None,
        initargs: Sequence[Any],
    ) -> Any:
        process_class = Process if self._ctx is None else self._ctx.Process
        made = process_class(
            target=self._run_server,
            args=(
                *(self._registry, self._address, self._authkey, self._serializer, writer),
                *(initializer, initargs, self._is_open),
            ),
        )
        number = ":".join(str(i) for i in made._identity)  # noqa: SLF001 - as the stdlib names it
        made.name = f"{type(self).__name__}-{number}"
        return made

    def _receive_address(self, reader: Connection) -> tuple[Any, Token]:
        try:
            found: tuple[Any, Token] = reader.recv()
        except EOFError as error:
            # it ended before it served
            self._process.join()
            msg = (
                f"the manager's process {self._process.name} ended with exit code "
                f"{self._process.exitcode} before it served; its output tells why"
            )
            raise EOFError(msg) from error
        return found

    @classmethod
    def _run_server(
        cls,
        registry: Mapping[str, tuple[Any, Any, Any, Any]],
        address: Any,
        authkey: bytes,
        serializer: str,
        writer: Connection,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        is_open: bool = True,
    ) -> None:
        """Entry of the manager's process."""
        # the program that Ctrl-C ends shuts its managers down
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if initializer is not None:
            initializer(*initargs)
        server = cls._Server(registry, address, authkey, serializer, is_open=is_open)
        writer.send((server.address, server.token))
        writer.close()
        server.serve_forever()

    def get_server(self) -> Server:
        """A server for this very process; its ``serve_forever`` waits for managers that connect.

        Raises:
            ProcessError: the manager was started or shut down.
        """
        self._check_initial()
        return self._Server(
            self._registry,
            self._address,
            self._authkey,
            self._serializer,
            is_open=self._is_open,
        )

    def connect(self) -> None:
        """Use the manager that serves at :attr:`address`.

        Raises:
            multiprocessing.AuthenticationError: it has another key.
            OSError: no server listens at it, such as ConnectionRefusedError.
        """
        target = address_of(self._address)
        if target is None:
            self._server_proxy = connect_to(self._address, None, bytes(self._authkey))
        else:
            self._server_proxy = self._connect_in_run(target)
        self._state.value = State.STARTED

    def _connect_in_run(self, target: Address) -> BaseProxy:
        """Proxy of the server of a manager that is for this run only."""
        token = Token("#server", target, f"{target.target:x}")
        server = BaseProxy(token, self._serializer, authkey=self._authkey)
        try:
            server._callmethod("prove", (proof(self._authkey, self._address),))  # noqa: SLF001 - a proxy is a part of its manager
        except Exception as error:
            if isinstance(error.__cause__, AuthenticationError):
                raise error.__cause__ from None
            raise
        return server

    def join(self, timeout: float | None = None) -> None:
        """Wait until the manager's process has ended, where it was started here."""
        if self._process is not None:
            self._process.join(timeout)
            if not self._process.is_alive():
                self._process = None

    @property
    def address(self) -> Any:
        """Address that another manager of the same types connects to."""
        return self._address

    def __enter__(self) -> Any:
        if self._state.value == State.INITIAL:
            self.start()
        if self._state.value != State.STARTED:
            msg = "Manager has shut down"
            raise ProcessError(msg)
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _check_initial(self) -> None:
        if self._state.value == State.STARTED:
            msg = "Already started server"
            raise ProcessError(msg)
        if self._state.value == State.SHUTDOWN:
            msg = "Manager has shut down"
            raise ProcessError(msg)

    # -- objects

    @classmethod
    def register(
        cls,
        typeid: str,
        callable: Callable[..., Any] | None = None,  # noqa: A002 - the stdlib's name
        proxytype: Any = None,
        exposed: Sequence[str] | None = None,
        method_to_typeid: Mapping[str, str] | None = None,
        create_method: bool = True,
    ) -> None:
        """Register a type with managers of this class.

        Args:
            typeid: name of the type, and of the method that makes objects.
            callable: makes them; None where managers of this class only connect.
            proxytype: class of the proxies; if omitted, one with the object's public methods.
            exposed: methods that may be called; if omitted, the class's ``_exposed_``.
            method_to_typeid: methods that return a proxy, and the name of its type.
            create_method: False for no method that makes objects.
        """
        if "_registry" not in vars(cls):
            cls._registry = dict(cls._registry)
        if proxytype is None:
            proxytype = cls._auto_proxy()
        exposed = exposed or getattr(proxytype, "_exposed_", None)
        method_to_typeid = method_to_typeid or getattr(proxytype, "_method_to_typeid_", None)
        if method_to_typeid:
            for key, value in list(method_to_typeid.items()):
                assert type(key) is str, f"{key!r} is not a string"
                assert type(value) is str, f"{value!r} is not a string"
        known: Any = cls._registry
        known[typeid] = (callable, exposed, method_to_typeid, proxytype)
        if create_method:

            def create(self: BaseManager, /, *args: Any, **kwds: Any) -> Any:
                token, found = self._create(typeid, *args, **kwds)
                return proxytype(
                    token, self._serializer, manager=self, authkey=self._authkey, exposed=found
                )

            create.__name__ = typeid
            setattr(cls, typeid, create)

    @classmethod
    def _auto_proxy(cls) -> Callable[..., Any]:
        """Factory of proxies for types that are registered without a proxy class."""
        return AutoProxy

    def _create(self, typeid: str, /, *args: Any, **kwds: Any) -> tuple[Token, tuple[str, ...]]:
        """Make an object, which is held for a proxy; its token and its methods."""
        assert self._state.value == State.STARTED, "server not yet started"
        created: CreatedObject = self._call_server("create", typeid, *args, **kwds)
        return Token.of(created), created.exposed

    def _debug_info(self) -> str:
        """Text that lists the manager's objects."""
        self._wait_for_releases()
        return str(self._call_server("debug_info"))

    def _number_of_objects(self) -> int:
        """Number of the manager's objects."""
        self._wait_for_releases()
        return int(self._call_server("number_of_objects"))

    def _call_server(self, name: str, /, *args: Any, **kwds: Any) -> Any:
        assert self._server_proxy is not None, "server not yet started"
        callee: Any = self._server_proxy._object  # noqa: SLF001 - the answer before a proxy is made of it
        return callee.call_method(name, args, kwds)

    def _wait_for_releases(self) -> None:
        if self._server_proxy is not None:
            callee: Any = self._server_proxy._object  # noqa: SLF001 - as above
            callee.wait_for_releases()


def _end(child: Any, server: BaseProxy, state: State, timeout: float) -> None:
    """Shut a manager's process down; terminate and then kill it where it does not end."""
    if child.is_alive():
        callee: Any = server._object  # noqa: SLF001 - the answer may not come
        try:
            callee.begin("shutdown", (), {}, callee.async_caller).wait(timeout)
        except TransportError as error:
            log.debug("fiber: the manager was not told to end: %s", error)
        for step in (lambda: None, child.terminate, functools.partial(_kill, child)):
            step()
            child.join(timeout)
            if not child.is_alive():
                break
    state.value = State.SHUTDOWN


def _kill(child: Any) -> None:
    child.kill()
    child.join()
