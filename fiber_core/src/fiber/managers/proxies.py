"""Proxies of managed objects: ``BaseProxy``, and proxy classes made of method names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from multiprocessing import process
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fiber._objects import store
from fiber._objects.handle import Handle, SharedObject
from fiber._objects.managed.calls import CreatedObject, load_proxytype
from fiber._objects.references import NO_REFERENCE

if TYPE_CHECKING:
    from fiber._objects.address import Address
    from fiber.managers.base import BaseManager

__all__ = ["AutoProxy", "BaseProxy", "MakeProxyType", "RebuildProxy", "Token"]


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
