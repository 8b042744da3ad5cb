"""``AsyncManager``: method calls return a handle at once, so that many managers work in parallel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from multiprocessing import TimeoutError as _TimeoutError
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base.threads import Deadline, wait_ready
from fiber._objects.managed.calls import CreatedObject
from fiber.managers.base import BaseManager, BaseProxy, State, Token, auto_proxy, make_type

if TYPE_CHECKING:
    from fiber._objects.managed.calls import LocalCall
    from fiber._objects.managed.referent import Call

__all__ = ["AsyncHandle", "AsyncManager", "AsyncProxy", "gather"]


class _Gettable(Protocol):
    def get(self, timeout: float | None = None) -> Any: ...
    def ready(self) -> bool: ...


class AsyncHandle:
    """Handle of an asynchronous method call, as a future.

    Handles may be read in any order, by any thread, more than once, or not at all; in asyncio they
    may be awaited.
    """

    def __init__(
        self, call: Call | LocalCall, proxy_of: Callable[[CreatedObject], Any], name: str
    ) -> None:
        self._call = call
        self._proxy_of = proxy_of
        self._name = name
        self._lock = threading.Lock()
        self._outcome: tuple[Any, BaseException | None] | None = None
        # an object of its own, so that what waits for it does not keep the handle alive
        self._end = _End()
        call.then(self._end.come)
        self._finalizer = weakref.finalize(self, call.discard, name)
        self._finalizer.atexit = False

    def ready(self) -> bool:
        """True once the value, or an exception, is here."""
        return self._call.done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is ready; False when ``timeout`` seconds have passed."""
        return self._call.wait(timeout)

    def successful(self) -> bool:
        """True where the method returned.

        Raises:
            ValueError: it has not ended.
        """
        if not self.ready():
            msg = f"{self!r} not ready"
            raise ValueError(msg)
        return self._settled()[1] is None

    def get(self, timeout: float | None = None) -> Any:
        """The value; a proxy where the method's value becomes a managed object.

        Raises:
            multiprocessing.TimeoutError: ``timeout`` seconds have passed without.
            Exception: that of the method, the remote traceback as its cause.
            PeerLostError: the manager's process is gone; an ``EOFError`` and a ``ConnectionError``.
        """
        if not self.wait(timeout):
            raise _TimeoutError
        value, error = self._settled()
        if error is not None:
            raise error
        return value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from wait_ready(self._end).__await__()
        return self.get()

    def __repr__(self) -> str:
        state = "ready" if self.ready() else "waiting"
        return f"<{type(self).__name__} of {self._name!r}, {state}>"

    def _settled(self) -> tuple[Any, BaseException | None]:
        with self._lock:
            if self._outcome is None:
                self._finalizer.detach()
                try:
                    value = self._call.value()
                    if isinstance(value, CreatedObject):
                        value = self._proxy_of(value)
                    self._outcome = value, None
                except Exception as error:  # also that of unpickling the value
                    self._outcome = None, error
            return self._outcome


class _End:
    """End of a call, which any number of coroutines may wait for: a :class:`~fiber._base.threads.Watchable`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_come = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the call has ended, or now if it has."""
        with self._lock:
            if not self._has_come:
                self._watchers.append(wake)
                return
        wake()

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Undo :meth:`watch`; nothing happens where ``wake`` was called already."""
        with self._lock:
            self._watchers = [one for one in self._watchers if one is not wake]

    def come(self) -> None:
        """The call has ended: wake who waits."""
        with self._lock:
            self._has_come = True
            watchers, self._watchers = self._watchers, []
        for wake in watchers:
            wake()


class AsyncProxy(BaseProxy):
    """A proxy whose methods return an :class:`AsyncHandle` at once.

    The calls that one process makes to one object are made in order; those to different objects, of
    one manager or of several, in parallel.
    """

    def _callmethod(
        self,
        methodname: str,
        args: tuple[Any, ...] = (),
        kwds: Mapping[str, Any] = {},
    ) -> AsyncHandle:
        """Begin to call a method of the managed object.

        Raises:
            Exception: that of pickling its arguments.
        """
        callee: Any = self._object
        call = callee.begin(methodname, args, kwds, callee.async_caller)
        return AsyncHandle(call, self._proxy_of, methodname)

    def _getvalue(self) -> Any:
        """A copy of the managed object, after the calls that were made before."""
        return self._callmethod("#GETVALUE").get()

    def __str__(self) -> str:
        try:
            # on this thread's caller: the asynchronous one may be busy
            return str(super()._callmethod("__repr__"))
        except Exception:
            return repr(self)[:-1] + "; '__str__()' failed>"


def MakeAsyncProxyType(  # noqa: N802 - as MakeProxyType
    name: str, exposed: Iterable[str]
) -> type[Any]:
    """A class of asynchronous proxies with the methods ``exposed``."""
    return make_type(name, exposed, AsyncProxy, MakeAsyncProxyType)


def AsyncAutoProxy(  # noqa: N802 - as AutoProxy
    token: Token,
    serializer: str,
    manager: BaseManager | None = None,
    authkey: bytes | None = None,
    exposed: Iterable[str] | None = None,
    incref: bool = True,
    manager_owned: bool = False,  # noqa: ARG001 - as AutoProxy
) -> Any:
    """An asynchronous proxy with the methods that the managed object exposes."""
    kwds = {"manager": manager, "authkey": authkey, "incref": incref}
    return auto_proxy(MakeAsyncProxyType, token, serializer, exposed, **kwds)


AsyncProxy._auto = AsyncAutoProxy  # noqa: SLF001 - it is made of AsyncProxy


class AsyncManager(BaseManager):
    """A manager whose objects are called asynchronously; it starts on its first use.

    Types are registered as with :class:`BaseManager`; their proxies are asynchronous unless they
    are registered with a ``proxytype`` that is not. An object is made before its proxy is returned.
    """

    @classmethod
    def _auto_proxy(cls) -> Callable[..., Any]:
        return AsyncAutoProxy

    def _create(self, typeid: str, /, *args: Any, **kwds: Any) -> tuple[Token, tuple[str, ...]]:
        with self._changing:
            if self._state.value == State.INITIAL:
                self.start()
        return super()._create(typeid, *args, **kwds)


def gather(
    handles: Iterable[_Gettable],
    timeout: float | None = None,
    *,
    return_exceptions: bool = False,
) -> list[Any]:
    """The values of many handles, in the order of the handles.

    Args:
        handles: handles of any managers; results of pools do as well.
        timeout: seconds for all of them together.
        return_exceptions: True to get exceptions in place of values.

    Raises:
        multiprocessing.TimeoutError: ``timeout`` seconds have passed.
        Exception: that of the first handle, in their order, whose call failed.
    """
    deadline = Deadline(timeout)
    found = []
    for handle in handles:
        try:
            found.append(handle.get(deadline.left))
        except Exception as error:
            # a timeout is no outcome of a call
            if not (return_exceptions and handle.ready()):
                raise
            found.append(error)
    return found
