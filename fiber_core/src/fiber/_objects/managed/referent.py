"""Managed objects: their owner's side, and that of all other processes.

At the owner, threads run calls of their methods, one a caller, and keep the results. Others send calls and wait for the
answers.
"""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fiber._base.entry_points import load_object
from fiber._objects import protocol
from fiber._objects.address import NO_REFERENCE, Kind
from fiber._objects.handle import decode, encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer, CreatedObject, LocalCall, Outcome
from fiber._objects.owned_object import OwnedObject
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import Item
from fiber._objects.remote_object import RemoteObject
from fiber._wire import codec, fork
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, TransportError, WireError

if TYPE_CHECKING:
    from fiber._objects.address import Address
    from fiber._objects.managed.channel import Channel
    from fiber._objects.remote_object import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import PendingCall

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


_numbers = itertools.count(1)
_current = threading.local()


class Caller:
    """Calls that run in order: those of one thread, or the asynchronous ones to one object.

    When it is collected, the processes that have a thread for it end that.
    """

    def __init__(self) -> None:
        #: its number in this process
        self.number = next(_numbers)
        # channels by owner, None for one that has none
        self._channels: dict[Owner, Channel | None] = {}
        self._opening: set[Owner] = set()
        # functions that end its threads: by owner and target, or by the threads of this process
        self._threads: dict[Any, Callable[[], Any]] = {}
        self._finalizer = weakref.finalize(self, _end_threads, self._threads)
        self._finalizer.atexit = False

    def add_remote_thread(self, owner: Owner, target: int, store: Store) -> None:
        """Note that an owner has a thread for it, to be ended by a message to a target."""
        if (owner, target) not in self._threads:
            message = calls.NUMBERED.pack(calls.ENDED, self.number)
            end = functools.partial(_cast_soon, store, owner, target, message)
            self._threads[owner, target] = end

    def channel(self, remote: RemoteReferent, store: Store) -> Channel | None:
        """The channel to the process of an object, opened if need be; None where there can be none.

        Raises:
            PeerLostError: that process, or the object, is gone.
        """
        owner = remote.owner
        if owner not in self._channels:
            self._opening.add(owner)
            try:
                # by name: it is for processes of one host
                opened = load_object("fiber._objects.managed.channel:opened")
                channel = self._channels[owner] = opened(store, remote, self.number)
            finally:
                self._opening.discard(owner)
            if channel is not None:
                self._threads[owner, None] = channel.close
        return self._channels[owner]

    def is_busy(self, owner: Owner) -> bool:
        """True where this thread is in the midst of a call through its channel, or opens that."""
        channel = self._channels.get(owner)
        return owner in self._opening or (channel is not None and channel.is_busy)

    def add_local_thread(self, end_soon: Callable[[int], object]) -> None:
        """Note that this process has a thread for it, which a call with its number ends."""
        self._threads.setdefault(end_soon, functools.partial(end_soon, self.number))


def _end_threads(threads: dict[Any, Callable[[], Any]]) -> None:
    for end in threads.values():
        end()


def current_caller() -> Caller:
    """The caller that this thread is."""
    found: Caller | None = getattr(_current, "caller", None)
    if found is None:
        found = _current.caller = Caller()
    return found


class RemoteReferent(RemoteObject):
    """A managed object of another process; one for each object, shared by its proxies."""

    @functools.cached_property
    def async_caller(self) -> Caller:
        """The caller of this process's asynchronous calls to the object."""
        return Caller()

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method and wait for its value; in order with this thread's other calls.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: that of the method, or of pickling its arguments.
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_forked_child():
            fork.check()
        caller = current_caller()
        if caller.is_busy(self._owner):
            # by a handler of a signal, or a finalizer: it cannot wait for the call that it interrupts
            caller, channel = Caller(), None
        else:
            channel = caller.channel(self, self._store)
        if channel is not None:
            return self._call_through(channel, encode((name, args, kwds)))
        call = self.begin(name, args, kwds, caller)
        try:
            call.wait()
        except BaseException:
            # interrupted: the remote thread may wait long, and this one go on to other calls
            if caller is current_caller():
                del _current.caller
            call.abandon()
            raise
        return call.value()

    def _call_through(self, channel: Channel, item: Item) -> Any:
        try:
            outcome = channel.call(self.target, item)
        except EOFError as error:
            raise self.loss_error(error) from error
        except BaseException:
            # as above
            del _current.caller
            channel.close()
            raise
        if outcome[0] is Answer.GONE:
            raise self.loss_error(PeerLostError())
        return calls.value(outcome)

    def begin(
        self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any], caller: Caller
    ) -> Call:
        """Send a call.

        Raises:
            Exception: that of pickling its arguments.
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_forked_child():
            fork.check()
        return Call(self, encode((name, args, kwds), auth_domain=self.auth_domain), caller)

    def wait_for_releases(self) -> None:
        """Wait until the references that were dropped before are reported to the owner."""
        self._owner.drain()
        # calls go another way, and may be there before
        self._owner.sync()

    # -- for calls

    def add_remote_thread(self, caller: Caller, target: int) -> None:
        """Note that the owner has a thread for a caller, to be ended by a message to a target."""
        caller.add_remote_thread(self._owner, target, self._store)

    def confirm_loaded(self, target: int, number: int) -> None:
        """Report that an answer with references was unpickled."""
        message = calls.NUMBERED.pack(calls.LOADED, number)
        _cast_soon(self._store, self._owner, target, message)

    def send_abandoned(self, number: int) -> None:
        """Report that a call is not waited for any more."""
        message = calls.NUMBERED.pack(calls.ABANDONED, number)
        _cast_soon(self._store, self._owner, self.target, message)

    def drop_created(self, address: Address) -> None:
        """Drop the reference to a created object that gets no proxy."""
        message = protocol.DETACH.pack(Op.DETACH, 0)
        _cast_soon(self._store, self._owner, address.target, message)

    def void_references(self, item: Item) -> None:
        """Drop the references in an item that will not be loaded."""
        self._store.void_references(calls.references(item))


def _cast_soon(store: Store, owner: Owner, target: int, message: bytes) -> None:
    """Send a message without answer, later; callable from finalizers."""
    if owner.is_lost:
        return
    action = functools.partial(owner.cast, target, [message])
    if not owner.submit(action):
        # retired meanwhile, and its connection may have no other use
        store.call_soon(functools.partial(store.run_in_background, action))


class Call:
    """A call that was sent to another process."""

    def __init__(self, remote: RemoteReferent, item: Item, caller: Caller) -> None:
        self._remote = remote
        self._caller = caller
        self._pending: PendingCall | None = None
        self._error: PeerLostError | None = None
        self._item = item if calls.references(item) else None
        try:
            self._pending = remote.call(calls.call(caller.number, item))
        except PeerLostError as error:
            self._error = remote.loss_error(error)
            self._void()

    @property
    def done(self) -> bool:
        """True once it has an outcome, or is lost."""
        return self._pending is None or self._pending.done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return self._pending is None or self._pending.wait(timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Call ``action`` once it is done: on the handler thread, or now."""
        if self._pending is None:
            action()
        else:
            self._pending.add_done_callback(lambda _: action())

    def value(self) -> Any:
        """Value of a call that is :attr:`done`; to be called once.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: that of the method.
        """
        if self._pending is None:
            assert self._error is not None
            raise self._error
        try:
            outcome, target = calls.read_answer(self._pending.result())
        except TransportError as error:
            self._void()
            raise self._remote.loss_error(error) from error
        self._remote.add_remote_thread(self._caller, target)
        try:
            return calls.value(outcome)
        finally:
            if calls.references(outcome[1]):
                self._remote.confirm_loaded(target, self._pending.number)

    def discard(self, unread: str = "") -> None:
        """Drop the outcome unread; replaces the action of :meth:`then`, callable from finalizers.

        Args:
            unread: the method's name, to log a failure; empty to log none.
        """
        if self._pending is not None:
            discard = functools.partial(_discard_outcome, self._remote, self._caller, unread)
            self._pending.add_done_callback(discard)

    def abandon(self) -> None:
        """Give up waiting: the owner rolls back what the call may still do."""
        if self._pending is not None:
            self._remote.send_abandoned(self._pending.number)
        self.discard()

    def _void(self) -> None:
        """Drop the references in its arguments, which will not be unpickled."""
        if self._item is not None:
            self._remote.void_references(self._item)


def _discard_outcome(
    remote: RemoteReferent, caller: Caller, unread: str, pending: PendingCall
) -> None:
    """On the handler thread, or now: drop the references in an answer."""
    try:
        (kind, item), target = calls.read_answer(pending.result())
    except TransportError:
        # it was not made, or is lost with its process
        return
    remote.add_remote_thread(caller, target)
    calls.log_failure(kind, unread)
    if kind is Answer.CREATED:
        remote.drop_created(calls.value((kind, item)).address)
    elif calls.references(item):
        remote.void_references(item)
        remote.confirm_loaded(target, pending.number)
