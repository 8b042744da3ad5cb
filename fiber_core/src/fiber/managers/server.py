"""Server of a manager: makes objects and serves them, in the process that they live in."""

from __future__ import annotations

import array
import hmac
import queue
import re
import threading
import weakref
from collections.abc import Mapping
from multiprocessing import AuthenticationError, process
from typing import Any, NoReturn

from fiber._objects import store
from fiber._objects.address import Address, Kind
from fiber._objects.auth_listener import AuthListener, open_listener
from fiber._objects.managed.caller_threads import CallerThreads
from fiber._objects.managed.referent import NewReferent, Referent
from fiber.managers.proxies import BaseProxy, Token, secret

__all__ = ["Server"]


class Namespace:
    """An object with nothing but the attributes that it is given."""

    def __init__(self, /, **kwds: Any) -> None:
        self.__dict__.update(kwds)

    def __repr__(self) -> str:
        public = sorted(f"{n}={v!r}" for n, v in vars(self).items() if not n.startswith("_"))
        return f"{type(self).__name__}({', '.join(public)})"


class Value:
    """An object with a ``value``."""

    def __init__(self, typecode: Any, value: Any, lock: Any = True) -> None:
        self._typecode = typecode
        self.value = value

    def get(self) -> Any:
        """Its value."""
        return self.value

    def set(self, value: Any) -> None:
        """Give it a value."""
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._typecode!r}, {self.value!r})"


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
