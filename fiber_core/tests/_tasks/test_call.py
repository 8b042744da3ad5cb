"""A call in the owner, and the encoding of its items."""

import pytest

from fiber._tasks.call import Call, Unsendable
from fiber._tasks.protocol import Mode
from fiber._wire import codec, frames
from fiber.model import Reason, ReasonKind
from fiber.model.job import Attempt
from tasks_world import Sink


class Once:
    """Pickles the first time only."""

    def __init__(self):
        self.pickled = False

    def __reduce__(self):
        if self.pickled:
            raise ValueError("a second time")
        self.pickled = True
        return (int, ())


class Exits:
    def __reduce__(self):
        raise SystemExit(3)


class Tied:
    """Is held alive by the call that carries it, until that is released."""

    holds = 0

    def __reduce__(self):
        Tied.holds += 1
        codec.envelope().on_release(self.let_go)
        return (int, ())

    def let_go(self):
        Tied.holds -= 1


def call(items, mode=Mode.MAP, function=abs, **options):
    options = {"chunksize": None, "retry": True, **options}
    return Call(1, function, mode, Sink(), items=items, **options)


def items_of(mode, segments):
    items = codec.loads(memoryview(frames.joined(segments)))
    if mode & Mode.SINGLY:
        return [codec.loads(memoryview(item)) for item in items]
    return items


def test_items_are_sent_as_one_pickle():
    mode, segments = call([1, 2, 3, 4], Mode.STARMAP).encode(1, 3)
    assert mode == Mode.STARMAP
    assert items_of(mode, segments) == [2, 3]


def test_an_item_that_cannot_be_pickled_comes_as_its_error_and_the_others_as_they_are():
    mode, segments = call([1, (i for i in "x"), 3]).encode(0, 3)
    first, second, third = items_of(mode, segments)
    assert mode == Mode.MAP | Mode.SINGLY
    assert (first, third) == (1, 3)
    assert isinstance(second, Unsendable)
    assert isinstance(second.error, TypeError)


def test_an_item_that_ends_its_pickler_is_an_error_not_the_end():
    mode, segments = call([Exits(), 2]).encode(0, 2)
    error, two = items_of(mode, segments)
    assert isinstance(error.error, SystemExit)
    assert two == 2


def test_a_call_that_grows_forgets_what_has_its_outcome():
    growing = call(None)
    assert growing.grows
    assert growing.extend([10, 11, 12]) == 3
    growing.forget(0, 2)
    assert growing.extend([13]) == 1
    assert growing.count == 4
    assert items_of(*growing.encode(2, 4)) == [12, 13]


def test_calls_of_one_function_are_of_one_kind():
    assert call([1]).kind == call([2, 3]).kind
    assert call([1]).kind != call([1], function=min).kind


def test_what_pickles_keep_alive_is_let_go_once():
    tied = call([Tied()])
    tied.encode(0, 1)
    assert Tied.holds > 0
    tied.release()
    tied.release()
    assert Tied.holds == 0


def test_a_function_that_cannot_be_pickled_leaves_nothing_alive():
    tied, generator = Tied(), (i for i in "x")
    with pytest.raises(TypeError, match="pickle"):
        call([1], function=lambda: (tied, generator))
    assert Tied.holds == 0


def test_a_crash_tells_its_attempts():
    attempt = Attempt(
        worker="w", host="h", pid=3, reason=Reason(ReasonKind.EXIT, 7), message="it left"
    )
    error = call([1]).crash_error(4, [attempt, attempt])
    assert error.attempts == (attempt, attempt)
    assert str(error).splitlines() == [
        "task 4 was given up: its worker died 2 times while it ran alone",
        "  1. w (pid 3 on h): it left",
        "  2. w (pid 3 on h): it left",
    ]
    assert "once while it ran alone" in str(call([1]).crash_error(4, [attempt]))


def test_a_crash_at_most_once_says_that_it_must_not_run_twice():
    assert "must not run twice" in str(call([1], retry=False).crash_error(4, []))
