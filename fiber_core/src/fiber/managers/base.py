"""``BaseManager``: starts the process of a manager, or connects to one."""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import AuthenticationError, ProcessError, process, util
from typing import Any

from fiber._objects.address import Address
from fiber._objects.auth_listener import connect_to
from fiber._objects.managed.calls import CreatedObject
from fiber.connection import Connection, Pipe
from fiber.exceptions import TransportError
from fiber.managers.proxies import AutoProxy, BaseProxy, Token, secret
from fiber.managers.server import Server, address_of, proof
from fiber.process import Process

__all__ = ["BaseManager", "State"]

log = logging.getLogger("fiber")


class State:
    """State of a manager; the stdlib's class of this name."""

    __slots__ = ("value",)
    INITIAL = 0
    STARTED = 1
    SHUTDOWN = 2

    def __init__(self) -> None:
        self.value = self.INITIAL


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
                self._address, token = self._receive_address(reader)
            self._server_proxy = BaseProxy(token, self._serializer, authkey=self._authkey)
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
