"""Results to wait for: one, a list, an iterator; order of callbacks and wake-ups."""

import functools
import gc
import threading
import weakref
from multiprocessing import TimeoutError as MpTimeoutError
from unittest.mock import Mock, call, patch

import pytest

from fiber._base.threads import CallbackThread
from fiber.exceptions import TerminatedError, WorkerCrashedError
from fiber.results import AsyncResult, IMapIterator, MapResult, Stream, UnorderedStream


def finish(result, start, values, errors):
    """The last outcomes come."""
    result.accept(start, values, errors)
    result.done()


class Something:
    pass


def total(method):
    """The sum of the counts that a feeder was told."""
    return sum(one.args[0] for one in method.call_args_list)


@pytest.fixture
def callbacks():
    callbacks = CallbackThread("test-callbacks")
    yield callbacks
    callbacks.close()


class TestOneResult:
    @pytest.mark.parametrize(
        "fail",
        [
            lambda result, error: finish(result, 0, [None], {0: error}),
            lambda result, error: (result.fail(0, 1, error), result.done()),
            lambda result, error: result.broken(error),
        ],
        ids=["it was raised", "the task was given up", "the pool is broken"],
    )
    def test_an_error_is_raised_and_passed_to_the_error_callback(self, callbacks, fail):
        called, error = [], KeyError("x")
        result = AsyncResult(callbacks, pytest.fail, called.append)
        fail(result, error)
        result.broken(TerminatedError("later"))
        with pytest.raises(KeyError):
            result.get(30)
        assert not result.successful()
        assert called == [error]

    @pytest.mark.parametrize("timeout", [-1, 0, 0.01])
    def test_one_that_waits_too_short_does_not_wake_those_that_go_on(self, callbacks, timeout):
        result = AsyncResult(callbacks)
        got, begun = [], threading.Semaphore(0)
        result.watch = lambda wake, watch=result.watch: (watch(wake), begun.release())
        waiters = [threading.Thread(target=lambda: got.append(result.get(30))) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
            begun.acquire()
        with pytest.raises(MpTimeoutError):
            result.get(timeout)
        assert not got
        result.settle("value", None)
        for waiter in waiters:
            waiter.join(30)
        assert got == ["value"] * 3
        assert result.get(timeout) == "value"

    def test_an_interrupt_while_one_waits_ends_the_wait_and_the_result_can_be_had_later(
        self, callbacks
    ):
        result = AsyncResult(callbacks)
        interrupted = patch("fiber.results.in_turns", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            result.get()
        result.settle("value", None)
        assert result.get() == "value"


class TestManyResults:
    def test_the_first_failed_item_by_position_is_raised(self, callbacks):
        result = MapResult(4, callbacks)
        result.accept(2, [None, None], {2: KeyError("third"), 3: None})
        finish(result, 0, [None, 2], {0: ValueError("first")})
        with pytest.raises(ValueError, match="first"):
            result.get()
        # what an error kept from running has failed with it
        assert isinstance(result._value[3], KeyError)

    def test_a_crash_has_all_outcomes_by_position(self, callbacks):
        result = MapResult(4, callbacks)
        crash, error = WorkerCrashedError("crash"), KeyError("x")
        left = [result._number_left]
        for arrive in (
            lambda: result.accept(0, [1], {}),
            lambda: result.fail(1, 3, crash),
            lambda: finish(result, 3, [None], {3: error}),
        ):
            arrive()
            left.append(result._number_left)
        assert left == [4, 3, 1, 0]
        with pytest.raises(WorkerCrashedError) as caught:
            result.get()
        assert caught.value.results == [1, crash, crash, error]


@pytest.mark.parametrize("make", [AsyncResult, lambda _: Stream()], ids=["a result", "a stream"])
@pytest.mark.parametrize("is_exiting", [True, False])
def test_who_waits_for_a_pool_that_ends_with_the_interpreter_is_not_woken(
    callbacks, monkeypatch, make, is_exiting
):
    monkeypatch.setattr("multiprocessing.util._exiting", is_exiting)
    result, woken = make(callbacks), []
    result.watch(lambda: woken.append("woken"))

    result.broken(TerminatedError("the pool was terminated"))

    assert bool(woken) is not is_exiting
    # who asks from now on, as in an exit handler, does not wait for ever
    with pytest.raises(TerminatedError):
        result.take(30) if isinstance(result, Stream) else result.get(30)


class Held:
    """A callback that waits until it is released."""

    def __init__(self):
        self.has_begun = threading.Event()
        self.release = threading.Event()

    def __call__(self, value):
        self.has_begun.set()
        assert self.release.wait(30)


def one(*callbacks):
    result = AsyncResult(*callbacks)
    result.accept(0, [1], {})
    return result


def one_failed(*callbacks):
    result = AsyncResult(*callbacks)
    result.fail(0, 1, KeyError("x"))
    return result


def many(*callbacks):
    result = MapResult(2, *callbacks)
    result.accept(0, [1, 2], {})
    return result


class TestCallbacks:
    @pytest.mark.parametrize("make", [one, one_failed, many])
    def test_waiting_and_the_life_of_its_pool_end_after_the_callback_has_returned(
        self, callbacks, make
    ):
        held, woken, pool = Held(), [], Something()
        alive = weakref.ref(pool)
        result = make(callbacks, held, held, pool)
        del pool
        result.watch(lambda: woken.append(held.release.is_set()))
        result.done()
        assert held.has_begun.wait(30)
        assert not result.ready()
        with pytest.raises(MpTimeoutError):
            result.get(timeout=0.05)
        assert not woken
        assert alive() is not None
        held.release.set()
        result.wait(30)
        assert result.ready()
        callbacks.close()
        assert woken == [True]
        assert alive() is None

    @pytest.mark.parametrize("make", [one, one_failed])
    def test_one_that_is_not_called_is_not_waited_for(self, callbacks, make):
        others = (None, pytest.fail) if make is one else (pytest.fail, None)
        result, late = make(callbacks, *others), make(callbacks, pytest.fail, pytest.fail)
        result.done()
        assert result.ready()
        callbacks.close()
        late.done()
        assert late.ready()

    def test_one_may_wait_for_its_own_result_and_for_one_that_is_called_after_it(self, callbacks):
        seen, done = [], threading.Event()

        def wait(_):
            first.wait()
            seen.extend([first.ready(), first.get(), second.get()])
            done.set()

        first = one(callbacks, wait)
        second = many(callbacks, lambda _: seen.append("second"))
        first.done()
        second.done()
        assert done.wait(30)
        second.wait(30)
        assert seen == [True, 1, [1, 2], "second"]

    def test_one_that_raises_blocks_no_waiter(self, callbacks, monkeypatch):
        raised = []
        monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))

        def fail(_):
            raise SystemExit

        result = one(callbacks, fail)
        result.done()
        assert result.get(30) == 1
        callbacks.close()
        assert raised == [SystemExit]


@pytest.fixture
def feeder():
    return Mock(error=None)


@pytest.fixture
def stream(feeder):
    stream = Stream()
    stream.attach(feeder)
    return stream


class TestStreams:
    def test_an_error_is_raised_in_its_place_and_the_iterator_goes_on(self, stream):
        stream.accept(0, [1, None, 3], {1: KeyError("x")})
        stream.fail(3, 4, WorkerCrashedError("crash"))
        stream.done()
        results = IMapIterator(stream)
        assert next(results) == 1
        with pytest.raises(KeyError):
            next(results)
        assert results.next() == 3
        with pytest.raises(WorkerCrashedError):
            next(results)
        with pytest.raises(StopIteration):
            next(results)

    def test_what_an_error_kept_from_running_has_no_outcome_and_makes_room(self, stream, feeder):
        finish(stream, 0, [None, None, None], {0: KeyError("x"), 1: None, 2: None})
        assert total(feeder.taken) == 2
        with pytest.raises(KeyError):
            stream.take(0)
        assert total(feeder.taken) == 3

    def test_the_feeder_hears_of_waiting_of_what_comes_and_what_is_taken(self, stream, feeder):
        with pytest.raises(MpTimeoutError):
            stream.take(0)
        assert feeder.mock_calls == [call.flush()]
        stream.accept(0, [1, 2, 3], {})
        stream.fail(3, 5, KeyError())
        assert total(feeder.arrived) == 5
        assert total(feeder.taken) == 0
        stream.take(0)
        assert total(feeder.taken) == 1

    @pytest.mark.parametrize("what", ["iterable", "pool"])
    def test_what_came_is_handed_out_before_an_error_of_the_whole(self, stream, feeder, what):
        stream.accept(0, [1], {})
        if what == "iterable":
            feeder.error = KeyError(what)
            stream.done()
        else:
            stream.broken(KeyError(what))
            assert feeder.mock_calls[-1] == call.stop()
        results = IMapIterator(stream)
        assert next(results) == 1
        with pytest.raises(KeyError, match=what):
            next(results)
        with pytest.raises(StopIteration):
            next(results)

    def test_it_may_be_broken_before_it_has_a_feeder_which_is_stopped_then(self):
        stream, feeder = Stream(), Mock(error=None)
        stream.broken(TypeError("cannot be pickled"))
        stream.drain()
        with pytest.raises(TypeError):
            stream.take(0)
        stream.attach(feeder)
        assert feeder.mock_calls == [call.stop()]


class TestIteratorsThatAreLeft:
    def test_never_asked_everything_is_run_for_its_effects_and_results_are_dropped(
        self, stream, feeder
    ):
        results = IMapIterator(stream)
        del results
        gc.collect()
        assert feeder.mock_calls == [call.drain()]
        stream.accept(0, [bytes(1000)] * 10, {})
        assert not stream._ready
        assert total(feeder.arrived) == 10

    def test_left_in_the_middle_nothing_more_is_drawn_until_the_pool_is_joined(
        self, stream, feeder
    ):
        results = IMapIterator(stream)
        stream.accept(0, [1, 2], {})
        next(results)
        del results
        gc.collect()
        feeder.drain.assert_not_called()
        stream.accept(2, [3], {})
        assert not stream._ready
        stream.drain()
        feeder.drain.assert_called_once_with()

    def test_an_iterator_keeps_its_pool_alive(self, stream):
        pool = Something()
        alive = weakref.ref(pool)
        results = IMapIterator(stream, pool)
        del pool
        assert alive() is not None
        del results
        assert alive() is None

    def test_collected_within_a_section_that_holds_its_lock_nothing_hangs(self, stream):
        results = IMapIterator(stream)
        with stream._changed:
            del results
            gc.collect()


def test_what_has_come_is_had_without_waiting():
    stream, error = Stream(), ValueError("bad")
    assert stream.poll() is None
    stream.accept(0, [1, 2], {})
    stream.fail(2, 3, error)
    assert stream.poll() == (1, None)
    assert stream.outcome(0) == (2, None)
    assert stream.poll() == (None, error)
    stream.done()
    with pytest.raises(StopIteration):
        stream.poll()


@pytest.mark.parametrize("end", ["done", "broken", "accept", "fail"])
def test_a_watcher_is_woken_once(end):
    noted, stream = [], UnorderedStream()
    stream.watch(lambda: noted.append(1))
    arguments = {"broken": [OSError()], "accept": [0, [1], {}], "fail": [0, 1, OSError()]}
    for _ in range(2):
        getattr(stream, end)(*arguments.get(end, []))
    assert noted == [1]


def test_a_late_watcher_is_woken_at_once_and_one_that_was_taken_back_not_at_all():
    noted, stream = [], Stream()
    for watcher in ("first", "second"):
        stream.watch(wake := functools.partial(noted.append, watcher))
    stream.unwatch(wake)
    stream.unwatch(wake)
    stream.accept(0, [1], {})
    assert noted == ["first"]
    stream.watch(wake)
    assert noted == ["first", "second"]


def test_results_in_order_wake_for_the_next_one_only():
    stream = Stream()
    noted = []
    stream.watch(lambda: noted.append(stream.poll()))
    # one that is not the next: whoever was told asks, finds nothing and waits again
    stream.accept(1, ["b"], {})
    stream.watch(lambda: noted.append(stream.poll()))
    stream.accept(0, ["a"], {})
    assert noted == [None, ("a", None)]
