"""Owner side of a managed object: executes calls of its methods, and sends the results."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.handle import decode, encode
from fiber._objects.managed import calls
from fiber._objects.managed.caller_threads import CallerThreads
from fiber._objects.managed.calls import Answer, CreatedObject, LocalCall, Outcome
from fiber._objects.managed.remote_referent import Caller
from fiber._objects.owned_object import OwnedObject
from fiber._objects.queue.messages import Item
from fiber._objects.references import NO_REFERENCE
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    from fiber._objects.store import Store

#: makes a managed object of a method's value, by the registered name of its type
MakeReferent = Callable[[str, Any], "NewReferent"]

#: undoes a method whose caller waits no more: the object, the method's name, its value
Rollback = Callable[[Any, str, Any], Any]

#: methods of any object, exposed or not
_ALWAYS: Mapping[str, Callable[[Any], Any]] = {
    "__str__": str,
    "__repr__": repr,
    "#GETVALUE": lambda obj: obj,
}
# types that cannot be pickled; a list is sent instead
_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))


class NewReferent:
    """A managed object that a method call has just created."""

    def __init__(
        self, referent: Referent, typeid: str, exposed: tuple[str, ...], proxytype: Any
    ) -> None:
        self._referent = referent
        self._typeid = typeid
        self._exposed = exposed
        self._proxytype = proxytype

    def info(self, peer: Peer | None) -> CreatedObject:
        """Description for the calling process, for which a reference is held."""
        address = self._referent.address_in(None if peer is None else peer.auth_domain)
        if peer is not None:
            self._referent.hold_for(peer)
        proxytype = codec.pickled(self._proxytype)
        return CreatedObject(self._typeid, self._exposed, address, proxytype)


class Referent(OwnedObject):
    """Managed object at its owner.

    Args:
        store: store of the owner's process.
        caller_threads: threads for the calls.
        obj: the object.
        exposed: names of the methods that may be called.
        typeids: registered types of methods whose values become managed objects, by method.
        make_referent: makes those.
        thread_neutral: True where its methods have the same effect on any thread.
        errors_as_text: True to send its exceptions as text.
        rollback: undoes a method whose caller died or was interrupted while it ran.
    """

    def __init__(
        self,
        store: Store,
        caller_threads: CallerThreads,
        obj: Any,
        exposed: Collection[str],
        *,
        typeids: Mapping[str, str] | None = None,
        make_referent: MakeReferent | None = None,
        thread_neutral: bool = False,
        errors_as_text: bool = False,
        rollback: Rollback | None = None,
    ) -> None:
        super().__init__(store, Kind.REFERENT)
        self._caller_threads = caller_threads
        # emptied when the last reference is dropped
        self._obj = [obj]
        self._exposed = frozenset(exposed)
        self._typeids = dict(typeids or {})
        self._make_referent = make_referent
        self._thread_neutral = thread_neutral
        self._errors_as_text = errors_as_text
        self._rollback = rollback

    @property
    def exposed(self) -> tuple[str, ...]:
        """Names of the methods that may be called."""
        return tuple(sorted(self._exposed))

    def debug_text(self) -> str:
        """Number of holders and the beginning of its text, for ``debug_info``."""
        holders = len(self._references.peers(0)) + self._references.is_held_locally(0)
        obj = self._obj[:]
        text = str(obj[0])[:75] if obj else "(gone)"
        return f"  {self.target:x}:       processes={holders}\n    {text}"

    def hold_for(self, peer: Peer) -> None:
        """Hold a reference for another process, which is about to get it."""
        with self.lock:
            self._references.attach(peer, 0, NO_REFERENCE)
        if not peer.alive:
            # its loss may have been noted before the reference was
            self.on_peer_lost(peer)

    # -- calls

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method from this process, on this thread; arguments and value are copies."""
        return calls.value(self._outcome(self._obj[:], encode((name, args, kwds)), None))

    def begin(
        self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any], caller: Caller
    ) -> LocalCall:
        """Call a method from this process, on the caller's thread.

        Raises:
            Exception: that of pickling its arguments.
        """
        call, item, obj = LocalCall(), encode((name, args, kwds)), self._obj[:]

        def task() -> None:
            call.settle(self._outcome(obj, item, None))

        self._caller_threads.submit(None, caller.number, task, thread_neutral=self._thread_neutral)
        caller.add_local_thread(self._caller_threads)
        return call

    @functools.cached_property
    def async_caller(self) -> Caller:
        """The caller of this process's asynchronous calls to the object."""
        return Caller()

    def wait_for_releases(self) -> None:
        """Wait until the references that were dropped before are counted."""
        noted = threading.Event()
        self._store.call_soon(noted.set)
        noted.wait(self._store.timing.settle)

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op == calls.ABANDONED:
            self._caller_threads.abandon(peer, protocol.read(calls.NUMBERED, message.body)[1])
            return
        if op == calls.OPEN and message.kind is Frame.CALL:
            caller, item = calls.read_call(message.body)
            # the thread is the caller's for as long as the channel is open, and this object need not be there
            task = functools.partial(
                _serve_channel,
                self._store,
                self._caller_threads,
                peer,
                caller,
                self.target,
                message.id,
                item,
            )
            self._caller_threads.submit(peer, caller, task, thread_neutral=False)
            return
        if op != calls.CALL or message.kind is not Frame.CALL:
            super()._on_request(peer, message, op)
            return
        caller, item = calls.read_call(message.body)
        # the call is made even if its process drops the object right after it
        self._caller_threads.add_call(peer, message.id)
        task = functools.partial(self._serve, peer, message.id, self._obj[:], item)
        try:
            self._caller_threads.submit(peer, caller, task, thread_neutral=self._thread_neutral)
        except RuntimeError as error:
            self._caller_threads.reply(peer, self.target, message.id, _failed(error))

    def _serve(self, peer: Peer, number: int, obj: list[Any], item: Item) -> None:
        is_awaited = functools.partial(self._caller_threads.is_awaited, peer, number)
        outcome = self._outcome(obj, item, peer, is_awaited)
        self._caller_threads.reply(peer, self.target, number, outcome)

    def _outcome(
        self,
        obj: list[Any],
        item: Item,
        peer: Peer | None,
        is_awaited: Callable[[], bool] | None = None,
    ) -> Outcome:
        auth_domain = None if peer is None else peer.auth_domain
        try:
            name, args, kwds = decode(item)
            function = self._find(obj, name)
        except BaseException as error:  # unpickling a user's class may raise anything
            return _failed(error)
        try:
            value = function(*args, **kwds)
            if is_awaited is not None and not is_awaited():
                self._roll_back(obj[0], name, value)
            typeid = self._typeids.get(name)
            if typeid is not None and self._make_referent is not None:
                value = self._make_referent(typeid, value)
        except Exception as error:
            return _failed(error) if self._errors_as_text else _raised(error)
        except (
            BaseException
        ) as error:  # sys.exit() of a method ends neither this thread nor the caller
            return _failed(error)
        try:
            if isinstance(value, NewReferent):
                return Answer.CREATED, encode(value.info(peer), auth_domain=auth_domain)
            found = list(value) if isinstance(value, _VIEWS) else value
            return Answer.RETURNED, encode(found, auth_domain=auth_domain)
        except BaseException as error:  # as above
            return _failed(error, "Unserializable message: ")

    def _roll_back(self, obj: Any, name: str, value: Any) -> None:
        if self._rollback is not None:
            self._rollback(obj, name, value)

    def _find(self, obj: list[Any], name: str) -> Callable[..., Any]:
        if not obj:
            msg = "this managed object is gone; its last proxy let it go"
            raise LookupError(msg)
        if name in self._exposed and (hasattr(obj[0], name) or name not in _ALWAYS):
            found: Callable[..., Any] = getattr(obj[0], name)
            return found
        if name in _ALWAYS:
            return functools.partial(_ALWAYS[name], obj[0])
        if name == "#METHODS":
            return lambda: self.exposed
        msg = f"method {name!r} of {type(obj[0])!r} object is not in exposed={self.exposed!r}"
        raise AttributeError(msg)

    # -- the end

    def _on_end_closed(self, end: int) -> None:
        # its finalization may run user code, which must not be on the handler thread; in a process
        # that ends, it ends with the process
        obj, self._obj = self._obj, []
        if not self._store.is_closing:
            self._store.run_in_background(obj.clear)


def _serve_channel(
    store: Store,
    caller_threads: CallerThreads,
    peer: Peer,
    caller: int,
    target: int,
    number: int,
    item: Item,
) -> None:
    """Run the calls of a channel on its caller's thread, which ends with it."""
    far_end, serve = (
        load_object(f"fiber._objects.managed.channel:{name}") for name in ("far_end", "serve")
    )
    way = far_end(item)
    peer.send(Frame.REPLY, target, number, [bytes([way is not None])])
    if way is not None:
        serve(way, functools.partial(_run_through, store, peer))
        caller_threads.end(peer, caller)


def _run_through(
    store: Store, peer: Peer, target: int, item: Item, is_awaited: Callable[[], bool]
) -> Outcome:
    """Run a call of any managed object of this process that came through a channel."""
    called = store.own(target)
    if not isinstance(called, Referent):
        return Answer.GONE, encode(None)
    return called._outcome(called._obj[:], item, peer, is_awaited)  # noqa: SLF001 - its own kind


def _raised(error: BaseException) -> Outcome:
    return Answer.RAISED, encode(codec.with_traceback(error))


def _failed(error: BaseException, prefix: str = "") -> Outcome:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    cause = codec.with_traceback(error) if isinstance(error, Exception) else None
    suffix = "\n" if prefix else ""
    return Answer.FAILED, encode((prefix + "".join(lines) + suffix, cause))
