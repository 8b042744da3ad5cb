"""Owner side of managed objects: threads that run calls of their methods, one a caller; and the results."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fiber._base.entry_points import load_object
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.handle import decode, encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer, CreatedObject, LocalCall, Outcome
from fiber._objects.managed.remote_referent import Caller
from fiber._objects.owned_object import OwnedObject
from fiber._objects.queue.messages import Item
from fiber._objects.references import NO_REFERENCE
from fiber._wire import codec
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store

log = logging.getLogger("fiber")

_Reference: TypeAlias = tuple[str, tuple[str, ...], int, int]
# None for this very process
_Key: TypeAlias = tuple[Peer | None, int]


class _CallerThread:
    """Queue of one thread; None in it ends the thread."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        #: True once a call may have bound something to the thread, such as a lock that it holds
        self.is_bound = False


class CallerThreads:
    """Threads that run calls, one for each caller: calls of one caller run in order, others in parallel.

    A caller is a thread of any process, so that locks which know their holder by its thread work;
    or the asynchronous calls of one process to one object. The thread ends when the caller's
    process announces its end or is lost, and after ``Timing.idle_thread`` without calls unless
    it is bound.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle = store.timing.idle_thread
        self._lock = threading.Lock()
        self._threads: dict[_Key, _CallerThread] = {}
        # references in answers that their receivers have not unpickled yet
        self._answers: dict[Peer, dict[int, list[_Reference]]] = {}
        # calls that are not answered yet, and those of them that are not waited for any more
        self._unanswered: set[_Key] = set()
        self._abandoned: set[_Key] = set()
        # names of the auth domains whose processes have threads here
        self._auth_domains: set[str] = set()
        #: number by which other processes address it
        self.target = store.node.new_target()
        store.node.endpoint.serve(self.target, self)

    def submit(
        self, peer: Peer | None, number: int, task: Callable[[], Any], *, thread_neutral: bool
    ) -> None:
        """Run a call on its caller's thread.

        Args:
            peer: the caller's process; None for this one.
            number: the process's number for the caller.
            task: makes the call; raises nothing.
            thread_neutral: True where the call has the same effect on any thread.

        Raises:
            RuntimeError: no thread can be started.
        """
        if (
            peer is not None
            and peer.auth_domain is not None
            and peer.auth_domain not in self._auth_domains
        ):
            self._auth_domains.add(peer.auth_domain)
            self._store.auth_domains.serve(peer.auth_domain, self.target, self)
        key = peer, number
        with self._lock:
            thread = self._threads.get(key)
            if thread is None:
                thread = _CallerThread()
                process = self._store.ident if peer is None else peer.ident
                name = f"fiber-calls-{process}-{number}"
                args = (key, thread)
                threading.Thread(target=self._run, name=name, args=args, daemon=True).start()
                self._threads[key] = thread
            thread.is_bound = thread.is_bound or not thread_neutral
            thread.tasks.put(task)

    def add_call(self, peer: Peer, number: int) -> None:
        """Note a call that :meth:`reply` will answer."""
        with self._lock:
            self._unanswered.add((peer, number))

    def abandon(self, peer: Peer, number: int) -> None:
        """Note that a call is not waited for any more."""
        with self._lock:
            if (peer, number) in self._unanswered:
                self._abandoned.add((peer, number))

    def is_awaited(self, peer: Peer, number: int) -> bool:
        """True while a call is waited for."""
        return peer.alive and (peer, number) not in self._abandoned

    def reply(self, peer: Peer, target: int, number: int, outcome: calls.Outcome) -> None:
        """Answer a call."""
        with self._lock:
            self._unanswered.discard((peer, number))
            self._abandoned.discard((peer, number))
        references = calls.references(outcome[1])
        if references:
            with self._lock:
                self._answers.setdefault(peer, {})[number] = list(references)
            if not peer.alive:
                self._void(peer)
        peer.send(Frame.REPLY, target, number, calls.answer(outcome, self.target))

    def end(self, peer: Peer, number: int) -> None:
        """End the thread of a caller after the calls that it has."""
        with self._lock:
            self._end((peer, number))

    def end_soon(self, number: int) -> None:
        """End the thread of a caller of this process; callable from finalizers."""
        self._store.call_soon(functools.partial(self._end_local, number))

    def _end_local(self, number: int) -> None:
        with self._lock:
            self._end((None, number))

    def close(self) -> None:
        """Accept no more messages."""
        self._store.node.endpoint.withdraw(self.target)
        if self._auth_domains:
            self._store.auth_domains.withdraw(self.target)

    @property
    def threads(self) -> int:
        """Number of threads."""
        with self._lock:
            return len(self._threads)

    # -- the service

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take one message of another process."""
        op, number = protocol.read(calls.NUMBERED, message.body)
        if op not in (calls.ENDED, calls.LOADED):
            msg = f"the threads of a manager are asked for operation {op}, which they do not have"
            raise WireError(msg)
        with self._lock:
            if op == calls.ENDED:
                self._end((peer, number))
            else:
                self._answers.get(peer, {}).pop(number, None)

    def on_peer_lost(self, peer: Peer) -> None:
        """End the threads of a lost process after the calls that they have."""
        with self._lock:
            for key in [key for key in self._threads if key[0] is peer]:
                self._end(key)
        self._void(peer)

    def _end(self, key: _Key) -> None:
        thread = self._threads.pop(key, None)
        if thread is not None:
            thread.tasks.put(None)

    def _void(self, peer: Peer) -> None:
        with self._lock:
            answers = self._answers.pop(peer, {})
        for references in answers.values():
            self._store.void_references(references)

    # -- the threads

    def _run(self, key: _Key, thread: _CallerThread) -> None:
        while True:
            try:
                task = thread.tasks.get(timeout=None if thread.is_bound else self._idle)
            except queue.Empty:
                if self._ends_idle(key, thread):
                    return
                continue
            if task is None:
                return
            try:
                task()
            except Exception:
                log.exception("fiber: a call of a managed object was not answered")
            # its references must not live until the next call
            del task

    def _ends_idle(self, key: _Key, thread: _CallerThread) -> bool:
        """True where an idle thread may end: it is not bound and no call came meanwhile."""
        with self._lock:
            if thread.is_bound or not thread.tasks.empty():
                return False
            if self._threads.get(key) is thread:
                del self._threads[key]
            return True


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
        caller.add_local_thread(self._caller_threads.end_soon)
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
