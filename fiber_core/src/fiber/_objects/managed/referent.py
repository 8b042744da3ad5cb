"""A managed object in the process that it lives in: answers calls of its methods."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.handle import decode, encode
from fiber._objects.managed import calls
from fiber._objects.managed.caller_threads import Strands
from fiber._objects.managed.calls import Answer, LocalCall, Made, Outcome
from fiber._objects.managed.remote_referent import Strand
from fiber._objects.owned import Shared
from fiber._objects.queue.messages import Item
from fiber._objects.references import NO_TICKET
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    from fiber._objects.store import Store

#: makes the managed object of what a method returned, by the name of its type
Adopt = Callable[[str, Any], "Product"]

#: takes back what a method did for a caller that is gone: the object, the method's name, its value
Undo = Callable[[Any, str, Any], Any]

#: what may be asked of any object, exposed or not
_ALWAYS: Mapping[str, Callable[[Any], Any]] = {
    "__str__": str,
    "__repr__": repr,
    "#GETVALUE": lambda thing: thing,
}
#: seconds that the handler thread takes at most until it has looked at what it was told
_MOMENT = 5.0
# what no pickle holds; a list does as well
_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Product:
    """A managed object that a call has just made."""

    def __init__(
        self, referent: Referent, typeid: str, exposed: tuple[str, ...], proxytype: Any
    ) -> None:
        self._referent = referent
        self._typeid = typeid
        self._exposed = exposed
        self._proxytype = proxytype

    def made(self, peer: Peer | None) -> Made:
        """What the caller is told; the object is held for it."""
        address = self._referent.address_in(None if peer is None else peer.realm)
        if peer is not None:
            self._referent.hold_for(peer)
        proxytype = codec.pickled(self._proxytype)
        return Made(self._typeid, self._exposed, address, proxytype)


class Referent(Shared):
    """One object, and the methods that may be called.

    Args:
        store: of the process that it lives in.
        strands: where calls from other processes run.
        thing: the object.
        exposed: names of the methods.
        typeids: by method, the type of the managed object that becomes of what it returns.
        adopt: makes that.
        leaves_nothing: True where its methods mean the same on any thread.
        hides_errors: True where its exceptions reach the caller as text.
        undo: takes back what a method did, where its caller waits no more: it died, or was
            interrupted.
    """

    def __init__(
        self,
        store: Store,
        strands: Strands,
        thing: Any,
        exposed: Collection[str],
        *,
        typeids: Mapping[str, str] | None = None,
        adopt: Adopt | None = None,
        leaves_nothing: bool = False,
        hides_errors: bool = False,
        undo: Undo | None = None,
    ) -> None:
        super().__init__(store, Kind.REFERENT)
        self._strands = strands
        # emptied when nobody holds it any more
        self._thing = [thing]
        self._exposed = frozenset(exposed)
        self._typeids = dict(typeids or {})
        self._adopt = adopt
        self._leaves_nothing = leaves_nothing
        self._hides_errors = hides_errors
        self._undo = undo

    @property
    def exposed(self) -> tuple[str, ...]:
        """Names of the methods that may be called."""
        return tuple(sorted(self._exposed))

    def described(self) -> str:
        """Its holders and the beginning of its text, for people."""
        holders = len(self._references.peers(0)) + self._references.is_held_here(0)
        thing = self._thing[:]
        text = str(thing[0])[:75] if thing else "(gone)"
        return f"  {self.target:x}:       processes={holders}\n    {text}"

    def hold_for(self, peer: Peer) -> None:
        """Another process is about to hear of it."""
        with self.lock:
            self._references.attach(peer, 0, NO_TICKET)
        if not peer.alive:
            # its loss may have been told before we were there to hear it
            self.on_peer_lost(peer)

    # -- calls

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method from this process, on this thread; arguments and value are copies."""
        return calls.value(self._outcome(self._thing[:], encode((name, args, kwds)), None))

    def begin(
        self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any], strand: Strand
    ) -> LocalCall:
        """Call a method from this process, on a thread of the strand.

        Raises:
            Exception: what pickling its arguments raised.
        """
        call, item, thing = LocalCall(), encode((name, args, kwds)), self._thing[:]

        def task() -> None:
            call.settle(self._outcome(thing, item, None))

        self._strands.submit(None, strand.number, task, leaves_nothing=self._leaves_nothing)
        strand.served_here(self._strands)
        return call

    @functools.cached_property
    def strand(self) -> Strand:
        """The strand of this process's asynchronous calls to the object."""
        return Strand()

    def settle(self) -> None:
        """Wait until what was let go of before is noted."""
        noted = threading.Event()
        self._store.call_soon(noted.set)
        noted.wait(_MOMENT)

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        if op == calls.ABANDONED:
            self._strands.abandon(peer, protocol.read(calls.NUMBERED, message.body)[1])
            return
        if op != calls.CALL or message.kind is not Frame.CALL:
            super()._answer(peer, message, op)
            return
        strand, item = calls.read_call(message.body)
        # whoever lets go of it right after this call still has the call made
        self._strands.begun(peer, message.id)
        task = functools.partial(self._serve, peer, message.id, self._thing[:], item)
        try:
            self._strands.submit(peer, strand, task, leaves_nothing=self._leaves_nothing)
        except RuntimeError as error:
            self._strands.reply(peer, self.target, message.id, _failed(error))

    def _serve(self, peer: Peer, number: int, thing: list[Any], item: Item) -> None:
        outcome = self._outcome(thing, item, peer, number)
        self._strands.reply(peer, self.target, number, outcome)

    def _outcome(self, thing: list[Any], item: Item, peer: Peer | None, number: int = 0) -> Outcome:
        realm = None if peer is None else peer.realm
        try:
            name, args, kwds = decode(item)
            function = self._find(thing, name)
        except (
            BaseException
        ) as error:  # a class of the user's may raise anything when it is unpickled
            return _failed(error)
        try:
            value = function(*args, **kwds)
            if peer is not None and not self._strands.is_awaited(peer, number):
                self._take_back(thing[0], name, value)
            typeid = self._typeids.get(name)
            if typeid is not None and self._adopt is not None:
                value = self._adopt(typeid, value)
        except Exception as error:
            return _failed(error) if self._hides_errors else _raised(error)
        except (
            BaseException
        ) as error:  # sys.exit() of a method ends neither this thread nor the caller
            return _failed(error)
        try:
            if isinstance(value, Product):
                return Answer.MADE, encode(value.made(peer), realm=realm)
            found = list(value) if isinstance(value, _VIEWS) else value
            return Answer.RETURNED, encode(found, realm=realm)
        except BaseException as error:  # as above
            return _failed(error, "Unserializable message: ")

    def _take_back(self, thing: Any, name: str, value: Any) -> None:
        if self._undo is not None:
            self._undo(thing, name, value)

    def _find(self, thing: list[Any], name: str) -> Callable[..., Any]:
        if not thing:
            msg = "this managed object is gone; its last proxy let it go"
            raise LookupError(msg)
        if name in self._exposed and (hasattr(thing[0], name) or name not in _ALWAYS):
            found: Callable[..., Any] = getattr(thing[0], name)
            return found
        if name in _ALWAYS:
            return functools.partial(_ALWAYS[name], thing[0])
        if name == "#METHODS":
            return lambda: self.exposed
        msg = f"method {name!r} of {type(thing[0])!r} object is not in exposed={self.exposed!r}"
        raise AttributeError(msg)

    # -- the end

    def _end_closed(self, end: int) -> None:
        # what it holds may run code of the user's when it goes, which the handler thread must not
        # one whose process ends goes with it
        thing, self._thing = self._thing, []
        if not self._store.is_closing:
            self._store.errand(thing.clear)


def _raised(error: BaseException) -> Outcome:
    return Answer.RAISED, encode(codec.with_traceback(error))


def _failed(error: BaseException, prefix: str = "") -> Outcome:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    cause = codec.with_traceback(error) if isinstance(error, Exception) else None
    suffix = "\n" if prefix else ""
    return Answer.FAILED, encode((prefix + "".join(lines) + suffix, cause))
