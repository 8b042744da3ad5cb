"""What serves a manager's objects, in the process that they live in.

What a manager takes back where a caller died while it waited: items it got, locks it took.
"""

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
from fiber._objects.auth_listener import Door, open_door
from fiber._objects.managed.caller_threads import Strands
from fiber._objects.managed.referent import Product, Referent
from fiber.managers.proxies import BaseProxy, Token, secret
from fiber.managers.standard import Namespace, Value

__all__ = ["Server"]

_LOCKS = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Semaphore,
)


def undo(thing: Any, name: str, value: Any) -> None:
    """Take back what a method did; on the thread that called it.

    Args:
        thing: the object; only those of the standard library's types are known.
        name: the method's name.
        value: what it returned.
    """
    if type(thing) is queue.Queue and name in {"get", "get_nowait"}:
        with thing.mutex:
            # where it was, before whatever came after it; it still counts as unfinished
            thing.queue.appendleft(value)
            thing.not_empty.notify()
    # whoever waits for a condition has the lock again, notified or not
    waited = name == "wait" and isinstance(thing, threading.Condition)
    if waited or (name == "acquire" and value and isinstance(thing, _LOCKS)):
        thing.release()


_TEXT = re.compile(r"([0-9a-f.]+)/([0-9a-f]+)@([a-z+]+://.+)")
#: what managers may ask of the server
_PUBLIC = ("create", "debug_info", "number_of_objects", "prove", "shutdown")
#: their methods mean the same on any thread
_THREADLESS = frozenset(
    {array.array, dict, list, set, queue.Queue, threading.Event, Namespace, Value}
)


class Server:
    """Makes objects and has them served, until it is told to end.

    Args:
        registry: the types by name: callable, exposed, method_to_typeid, proxytype.
        address: where it listens for managers that connect; None for any address.
        authkey: what they must know.
        serializer: ``"pickle"``.
        is_open: True where managers of other programs may connect.

    Raises:
        OSError: the address cannot be bound.
    """

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
        self._strands = Strands(self._store)
        self._referents: weakref.WeakSet[Referent] = weakref.WeakSet()
        self._desk = Referent(self._store, self._strands, self, _PUBLIC, hides_errors=True)
        #: by which managers of this run reach the server itself
        self.token = Token("#server", self._desk.address, f"{self._desk.target:x}")
        # also what newcomers get, so that the server goes on while it serves nobody
        self._own = BaseProxy(self.token, serializer, authkey=authkey)
        self._door: Door | None = None
        #: what ``connect`` takes
        self.address: Any = text_of(self._desk.address)
        if is_open:
            self._door = open_door(address, None, bytes(authkey), lambda _: self._own)
            self.address = self._door.address

    def serve_forever(self) -> NoReturn:
        """Serve until a manager says ``shutdown``; then exit."""
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
        if self._door is not None:
            self._door.close()
        self._own._let_go()  # noqa: SLF001 - its own
        self._strands.close()

    # -- what managers ask; on threads of its own

    def create(self, typeid: str, /, *args: Any, **kwds: Any) -> Product:
        """Make an object of a registered type."""
        make, exposed, typeids, proxytype = self.registry[typeid]
        if make is not None:
            thing = make(*args, **kwds)
        elif kwds or len(args) != 1:
            msg = "Without callable, must have one non-keyword argument"
            raise ValueError(msg)
        else:
            thing = args[0]
        if exposed is None:
            exposed = public_methods(thing)
        if typeids is not None:
            if not isinstance(typeids, dict):
                msg = f"Method_to_typeid {typeids!r}: type {type(typeids)!s}, not dict"
                raise TypeError(msg)
            exposed = [*exposed, *typeids]
        referent = Referent(
            self._store,
            self._strands,
            thing,
            exposed,
            typeids=typeids,
            adopt=self.create,
            leaves_nothing=type(thing) in _THREADLESS,
            undo=undo,
        )
        self._referents.add(referent)
        return Product(referent, typeid, tuple(exposed), proxytype)

    def number_of_objects(self) -> int:
        """How many objects have a proxy somewhere."""
        return len(self._referents)

    def debug_info(self) -> str:
        """The objects and how many processes hold each, for people."""
        found = sorted(self._referents, key=lambda referent: referent.target)
        return "\n".join(referent.described() for referent in found)

    def prove(self, digest: bytes) -> None:
        """Check that whoever connects knows the key."""
        if not hmac.compare_digest(digest, proof(self.authkey, self.address)):
            msg = "digest received was wrong"
            raise AuthenticationError(msg)

    def shutdown(self) -> None:
        """End."""
        # the answer goes out first: an ending process sends what it was given to send
        self._stop.set()


def public_methods(thing: Any) -> list[str]:
    """Names of the methods of an object that do not begin with ``_``."""
    return [n for n in dir(thing) if not n.startswith("_") and callable(getattr(thing, n))]


def proof(authkey: bytes, address: str) -> bytes:
    """What shows that one knows the key of the manager at an address."""
    return hmac.digest(authkey, f"fiber manager {address}".encode(), "sha256")


def text_of(address: Address) -> str:
    """The address of a server as users see it and hand it on."""
    return f"{address.ident}/{address.target:x}@{','.join(address.urls)}"


def address_of(text: Any) -> Address | None:
    """What :func:`text_of` wrote; None where it is something else."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    return Address(match[1], tuple(match[3].split(",")), int(match[2], 16), Kind.REFERENT)
