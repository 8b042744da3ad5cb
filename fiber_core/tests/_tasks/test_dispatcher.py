"""The owner side of calls, with workers played by the tests."""

import threading
import time

import pytest

from fiber._tasks import protocol
from fiber._tasks.call import Unsendable
from fiber._tasks.dispatcher import DeadlineTimer
from fiber._tasks.protocol import Mode, Outcomes, pack_done
from fiber._wire import codec
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError, WireError
from pool_tasks import square
from tasks_world import FakeReactor, Master, Sink
from wire_world import in_thread


@pytest.fixture
def master():
    return Master("a", "b")


@pytest.fixture
def peer(master):
    return master.peers["a"]


def test_each_worker_is_reported_ready_once(master):
    for _ in range(3):
        master.ask(master.peers["a"])
    assert master.observer.events == [("up", "a")]


def test_a_stranger_gets_nothing(master):
    with pytest.raises(WireError, match="no worker of this pool"):
        master.ask(master.connect("stranger"))


def test_what_a_worker_had_sent_whose_end_was_reported_sooner_is_let_go_without_a_word(master):
    master.observer.ended.add("late")
    peer = master.connect("late")
    master.ask(peer)
    assert peer.closed
    assert master.observer.events == []


@pytest.mark.parametrize("kind", [Kind.CALL, Kind.TASKS, Kind.RETIRE])
def test_what_is_not_for_a_pool_is_refused(master, kind):
    master.ask(master.peers["a"])
    with pytest.raises(WireError, match="not for a pool"):
        master.send(master.peers["a"], kind)


def test_a_worker_that_dials_again_loses_what_it_held_and_gets_the_function_anew(master):
    former = master.peers["a"]
    _, sink = master.call(square, [1])
    master.ask(former)
    latter = master.connect("a")
    master.ask(latter)
    assert [sent.kind for sent in latter.sent] == [Kind.FUNCTION, Kind.TASKS]
    # what the former connection still says is of no use
    head, _ = former.tasks()[0]
    master.finish(former, head, ["too late"])
    master.work(latter, square)
    assert sink.outcomes == {0: 1}
    # nor does its end cut the worker
    master.dispatcher.on_peer_lost(former)
    assert ("cut", "a") not in master.observer.events
    master.dispatcher.on_peer_lost(latter)
    assert master.observer.events[-1] == ("cut", "a")


def test_memory_is_asked_for_now_and_then_and_is_what_was_told_last(master, peer):
    master.ask(peer)
    assert master.dispatcher.ask_memory(1000.0) == {"a": None}
    assert len(peer.of_kind(Kind.LOOK)) == 1
    master.send(peer, Kind.SEEN, [protocol.seen(12345)])
    assert master.dispatcher.ask_memory(1000.0) == {"a": 12345}
    assert len(peer.of_kind(Kind.LOOK)) == 1
    assert master.dispatcher.ask_memory(0.0) == {"a": 12345}
    assert len(peer.of_kind(Kind.LOOK)) == 2


def test_one_that_has_to_go_is_asked_for_what_it_has_not_begun(master, peer):
    master.begin(square, list(range(1000)))
    ((first, items),) = peer.tasks()
    master.finish(peer, first, [square(n) for n in items])
    behind, _ = peer.tasks()[-1]
    assert behind.stop - behind.start > 1
    assert master.dispatcher.drain("a", True)
    (revoke,) = peer.of_kind(Kind.REVOKE)
    assert protocol.read_entry(revoke.body) == behind.entry
    assert peer.of_kind(Kind.RETIRE) == []
    master.send(peer, Kind.KEPT, [protocol.kept(behind.entry, behind.start)])
    assert len(peer.of_kind(Kind.RETIRE)) == 1
    assert master.observer.events[-1] == ("retired", "a")


def test_a_failed_initializer_is_reported_with_its_error(master):
    segments = codec.dumps(codec.with_traceback(KeyError("initializer")))
    master.send(master.peers["a"], Kind.BROKEN, segments)
    assert isinstance(master.observer.errors[0], KeyError)
    master.send(master.peers["a"], Kind.BROKEN, [b"nonsense"])
    assert isinstance(master.observer.errors[1], WireError)


def test_of_a_missing_function_of_a_call_that_is_over_only_its_name_comes(master, peer):
    call, _ = master.begin(square, [1])
    master.work(peer, square)
    master.send(peer, Kind.MISSING, [call.digest])
    assert bytes(peer.of_kind(Kind.FUNCTION)[-1].body) == call.digest
    # and the next call brings it along, since this worker has it no longer
    master.call(square, [1])
    assert len(peer.of_kind(Kind.FUNCTION)) == 3
    assert len(peer.of_kind(Kind.FUNCTION)[-1].body) > len(call.digest)


class TestItemsThatCannotBeRead:
    def test_they_are_sent_again_each_by_itself(self, master, peer):
        _, sink = master.begin(square, [1, 2, 3], chunksize=3)
        head, _ = peer.tasks()[0]
        master.send(peer, Kind.UNREAD, [protocol.entry(head.entry)])
        again, items = peer.tasks()[1]
        assert (again.entry, again.start, again.stop, again.chunk) == (head.entry, 0, 3, 3)
        assert again.mode == Mode.MAP | Mode.SINGLY
        assert items == [1, 2, 3]
        master.finish(peer, again, [1, 4, 9])
        assert sink.outcomes == {0: 1, 1: 4, 2: 9}

    def test_of_a_call_that_is_over_none_would_run(self, master, peer):
        master.begin(square, [1, 2, 3], chunksize=3)
        head, _ = peer.tasks()[0]
        master.dispatcher.end(TerminatedError("over"))
        master.send(peer, Kind.UNREAD, [protocol.entry(head.entry)])
        _, items = peer.tasks()[1]
        assert [type(item) for item in items] == [Unsendable] * 3

    def test_an_entry_that_the_worker_does_not_hold_is_refused(self, master, peer):
        master.ask(peer)
        with pytest.raises(WireError, match="not held"):
            master.send(peer, Kind.UNREAD, [protocol.entry(99)])


def test_of_work_that_is_stuck_the_first_result_counts_and_the_caller_sees_one(master, monkeypatch):
    a, b = master.peers.values()
    _, sink = master.call(square, list(range(40)))
    master.ask(a)
    seen = 0
    # until one of them holds several items; the other does the rest
    while len(a.tasks()[seen][1]) <= 2:
        head, items = a.tasks()[seen]
        master.finish(a, head, [square(item) for item in items])
        seen += 1
    head, items = a.tasks()[seen]
    done = master.serve("b", square)
    now = time.monotonic()
    # asked back, put off once as the clock jumps, given to the other one
    for later in (now + 10, now + 20, now + 30):
        monkeypatch.setattr("fiber._tasks.dispatcher.time.monotonic", lambda later=later: later)
        master.reactor.go_off()
    master.work(b, square, seen=done)
    # the stuck worker does all of it in the end
    master.finish(a, head, ["duplicate" if n else 0 for n in items])
    assert sink.is_done
    rest = range(head.start + 1, 40)
    assert [sink.outcomes[n] for n in rest] == [n * n for n in rest]


class TestTheEnd:
    def test_every_call_ends_with_the_first_error_and_later_ones_are_refused_with_it(self, master):
        sinks = [master.begin(square, items)[1] for items in ([1, 2], None)]
        master.dispatcher.end(TerminatedError("first"))
        master.dispatcher.end(TerminatedError("second"))
        # late results and requests are no matter
        master.serve("a", square)
        assert [str(sink.error) for sink in sinks] == ["first"] * 2
        with pytest.raises(TerminatedError, match="first"):
            master.call(square, [1])

    def test_with_two_workers_waiting_behind_an_entry_nothing_is_sent_of_a_call_that_ended(
        self, master
    ):
        a, b = master.peers.values()
        sinks = [master.call(square, list(range(100)))[1] for _ in range(5)]
        for peer in (a, b):
            master.ask(peer, 2)
            master.work(peer, square)
        master.dispatcher.end(TerminatedError("over"))
        assert all(sink.error or sink.is_done for sink in sinks)

    def test_wait_drained_returns_after_the_last_call_and_later_ones_are_refused(self, master):
        waited = threading.Event()

        def wait():
            master.dispatcher.wait_drained(ValueError("not running"))
            waited.set()

        _, sink = master.call(square, [1])
        ended = in_thread(wait)
        assert not waited.wait(0.02)
        master.ask(master.peers["a"])
        master.work(master.peers["a"], square)
        ended()
        assert sink.is_done
        with pytest.raises(ValueError, match="not running"):
            master.call(square, [1])


class Watched:
    """An item whose pickling calls a function."""

    action = staticmethod(lambda: None)

    def __reduce__(self):
        Watched.action()
        return (int, ())


class TestPicklingThatGoesWrong:
    def test_an_interruption_is_raised_and_its_worker_starts_over(self, master):
        def interrupt():
            raise KeyboardInterrupt

        peer = master.peers["a"]
        master.ask(peer)
        Watched.action = interrupt
        with pytest.raises(KeyboardInterrupt):
            master.call(square, [Watched()])
        assert peer.closed

    def test_an_item_may_add_a_call_while_it_is_pickled(self, master):
        inner = []
        Watched.action = lambda: inner or inner.append(master.call(abs, [2])[1])
        _, sink = master.call(square, [Watched()])
        master.ask(master.peers["a"], 2)
        master.work(master.peers["a"], lambda x: x)
        assert inner[0].is_done
        assert sink.is_done


def test_a_sink_that_raises_does_not_keep_others_from_their_results(master):
    class Raises(Sink):
        def accept(self, start, values, errors):
            raise RuntimeError("a sink on purpose")

    peer = master.peers["a"]
    call = master.dispatcher.prepare(square, Mode.MAP, Raises(), items=[1])
    master.dispatcher.add(call)
    _, sink = master.begin(square, [2])
    head, _ = peer.tasks()[0]
    with pytest.raises(RuntimeError):
        master.finish(peer, head, [1])
    master.work(peer, square, seen=1)
    assert sink.outcomes == {0: 4}


def test_entries_that_go_together_are_one_message_and_so_is_what_comes_of_them(master, peer):
    class Raises(Sink):
        def accept(self, start, values, errors):
            super().accept(start, values, errors)
            if start:
                raise RuntimeError("a sink on purpose")

    calls, sinks = [], []
    for sink in (Raises(), Sink()):
        call = master.dispatcher.prepare(square, Mode.MAP, sink, items=None, one_by_one=True)
        master.dispatcher.add(call)
        calls.append(call)
        sinks.append(sink)
    for at in range(12):
        master.dispatcher.extend(calls[at % 2], [at])
    master.ask(peer)
    # how long these take is known from now on
    master.finish(peer, peer.tasks()[0][0], [0])
    assert len(peer.of_kind(Kind.TASKS)) == 2
    given = peer.tasks()[1:]
    assert len(given) > 1
    numbers = range(1, 1 + len(given))
    assert [items for _, items in given] == [[at] for at in numbers]
    parts = []
    for head, items in given:
        credits_ = int(not head.more)
        done = pack_done(head.entry, head.start, head.stop, 0.001, credits_)
        parts.append((done, Outcomes(map(square, items))))
    with pytest.raises(RuntimeError):
        master.send(peer, Kind.DONE, protocol.done(parts), number=len(parts) - 1)
    assert [sinks[at % 2].outcomes[at // 2] for at in numbers] == [at * at for at in numbers]


def test_the_size_of_items_is_observed_and_bounds_what_is_sent(master, peer):
    call, sink = master.begin(len, [bytes(100_000) for _ in range(64)])
    master.work(peer, len)
    assert call.item_bytes == pytest.approx(100_000, rel=0.1)
    assert max(len(items) for _, items in peer.tasks()) <= 10
    assert sink.is_done


def test_on_dispatch_is_called_for_what_is_sent_and_not_for_what_was_withdrawn(master):
    sent = []
    call, _ = master.call(square, [1, 2], on_dispatch=lambda *items: sent.append(items))
    assert sent == []
    master.dispatcher.withdraw(call, 1, 2)
    master.serve("a", square)
    assert sent == [(0, 1)]


def test_a_deadline_that_is_over_rings_at_once_and_none_does_not():
    reactor, rings = FakeReactor(), []
    timer = DeadlineTimer(reactor, lambda: rings.append(1))
    timer.set(None)
    assert reactor.timers == []
    timer.set(0.0)
    assert reactor.timers[0].when <= time.monotonic()
    reactor.go_off()
    assert rings == [1]


def test_a_timer_is_set_anew_for_an_earlier_deadline_only():
    reactor, now = FakeReactor(), time.monotonic()
    timer = DeadlineTimer(reactor, lambda: None)
    for seconds in (200, 300, 100):
        timer.set(now + seconds)
    former, latter = reactor.timers
    assert former.callback is None
    assert latter.when < now + 150
    timer.expired()
    timer.set(now + 400)
    assert len(reactor.timers) == 3
