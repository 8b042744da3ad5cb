"""What travels between a pool and its workers: messages, items and outcomes."""

import contextlib
import pickle
import struct
from multiprocessing.pool import MaybeEncodingError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks import protocol
from fiber._tasks.call import Call
from fiber._tasks.protocol import (
    LOCATOR,
    Done,
    Mode,
    Outcomes,
    ReceivedOutcomes,
    Tasks,
    are_constant,
    encode_arguments,
)
from fiber._wire import codec, frames
from fiber.exceptions import WireError
from fiber.model import Reason, ReasonKind
from fiber.model.job import Attempt
from pool_tasks import Refuses
from tasks_world import OutOfBand, Sink, Tied, outcomes_of

# Messages between a pool and its workers are read as written, and nonsense is refused.


numbers = st.integers(0, 2**64 - 1)


entries = st.builds(
    Tasks,
    numbers,
    numbers,
    st.integers(0, 2**40),
    st.integers(2**40 + 1, 2**64 - 1),
    st.integers(1, 2**64 - 1),
    st.sampled_from([0, 1, 2, 64, 65, 66]),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
    st.binary(max_size=40),
)
reports = st.builds(
    Done, numbers, st.integers(0, 9), st.integers(9, 99), st.floats(0, 1e9), st.integers(0, 2)
)


def read(said, rest=b""):
    if isinstance(said, Tasks):
        return protocol.read_tasks(memoryview(said.encode() + rest))
    head = protocol.pack_done(said.entry, said.start, said.stop, said.seconds, said.credits)
    return protocol.read_done(memoryview(head + rest))


@given(st.one_of(entries, reports))
def test_an_entry_or_a_report_is_read_as_it_was_written(said):
    found, rest = read(said, b"items or outcomes")
    assert found == said
    assert bytes(rest) == b"items or outcomes"


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data):
    for read in (
        protocol.read_tasks,
        protocol.read_done,
        protocol.read_kept,
        protocol.read_entry,
        protocol.read_ask,
        protocol.read_function,
        lambda body: list(protocol.split(body)),
        lambda body: protocol.read_all_done(2, body),
    ):
        with contextlib.suppress(WireError):
            read(memoryview(data))


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(Tasks(1, 1, 5, 5, 1, 0, bytes(16)), id="no items"),
        pytest.param(Tasks(1, 1, 5, 6, 0, 0, bytes(16)), id="units of nothing"),
        pytest.param(Tasks(1, 1, 5, 6, 1, 3, bytes(16)), id="no such mode"),
        pytest.param(Tasks(1, 1, 5, 6, 1, 8, bytes(16)), id="no such flag"),
        pytest.param(Done(1, 5, 4, 0.1, 1), id="backwards"),
        pytest.param(Done(1, 4, 5, -1.0, 1), id="negative time"),
        pytest.param(Done(1, 4, 5, float("nan"), 1), id="no time"),
        pytest.param(Done(1, 4, 5, 0.1, 3), id="greedy"),
    ],
)
def test_an_entry_or_a_report_that_makes_no_sense_is_refused(said):
    with pytest.raises(WireError, match="makes no sense"):
        read(said)


@pytest.mark.parametrize("rest", [b"", b"\x00", b"\x00" * 16, b"\x05\x00abcd", b"\x05\x00abcde"])
def test_a_context_that_is_cut_short_is_refused(rest):
    head = Tasks(1, 1, 5, 6, 1, int(Mode.CONTEXT), bytes(16)).encode()
    with pytest.raises(WireError, match="context of a TASKS body is cut short"):
        protocol.read_tasks(memoryview(head + rest))


def test_entries_that_go_together_are_read_as_they_were_written():
    heads = [Tasks(number, 1, 0, 1, 1, 0, bytes(16), more=number < 9) for number in (7, 8, 9)]
    bodies = [[head.encode(), b"x" * head.entry] for head in heads]
    found = list(protocol.split(memoryview(bytearray().join(protocol.together(bodies)))))
    assert [number for number, _ in found] == [7, 8, 9]
    for head, (_, body) in zip(heads, found, strict=True):
        read_head, rest = protocol.read_tasks(body)
        assert read_head == head
        assert bytes(rest) == b"x" * head.entry


def test_outcomes_of_several_entries_travel_together():
    class Odd:
        def __reduce__(self):
            raise TypeError("it stays here")

    parts = []
    for start, values in ((5, [1, ValueError("two")]), (0, [[3], Odd()]), (9, []), (7, [4.5])):
        head = protocol.pack_done(start, start, start + len(values), 0.1, 0)
        parts.append((head, outcomes_of(values)))
    body = memoryview(bytearray().join(protocol.done(parts)))
    dones, received = protocol.read_all_done(len(parts) - 1, body)
    assert [(done.start, done.stop) for done in dones] == [(5, 7), (0, 2), (9, 9), (7, 8)]
    position, found = 0, []
    for done in dones:
        received.turn_to(done.start, position)
        position += done.stop - done.start
        values, errors = received.of(done.start, done.stop)
        found += [errors.get(at, value) for at, value in enumerate(values, done.start)]
    assert [found[0], found[2], found[4]] == [1, [3], 4.5]
    assert isinstance(found[1], ValueError)
    assert "it stays here" in str(found[3])


def test_heads_keep_what_follows_on_a_multiple_of_sixteen_bytes():
    for context in (b"", b"{}", b"14 characters.", b"15 characters.."):
        assert len(Tasks(1, 1, 0, 1, 1, Mode.MAP, bytes(16), context=context).encode()) % 16 == 0
    assert len(protocol.pack_done(1, 0, 1, 0.1, 1)) % 16 == 0
    assert protocol.DIGEST % 16 == 0


@given(numbers, numbers)
def test_small_bodies_are_read_as_they_were_written(first, second):
    assert protocol.read_kept(memoryview(protocol.kept(first, second))) == (first, second)
    assert protocol.read_entry(memoryview(protocol.entry(first))) == first


# A call in the owner, and the encoding of its items.


class Exits:
    def __reduce__(self):
        raise SystemExit(3)


def call(items, mode=Mode.MAP, function=abs, **options):
    options = {"chunksize": None, "retry": True, **options}
    return Call(1, function, mode, Sink(), items=items, **options)


def items_of(mode, segments):
    items = codec.loads(memoryview(frames.joined(segments)))
    if mode & Mode.SINGLY:
        return [codec.loads(memoryview(item)) for item in items]
    return items


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
    assert Tied.held > 0
    tied.release()
    tied.release()
    assert Tied.held == 0


def test_a_function_that_cannot_be_pickled_leaves_nothing_alive():
    tied, generator = Tied(), (i for i in "x")
    with pytest.raises(TypeError, match="pickle"):
        call([1], function=lambda: (tied, generator))
    assert Tied.held == 0


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
    # at most once
    assert "must not run twice" in str(call([1], retry=False).crash_error(4, []))


# Items of one unit share what they hold, and nothing with items of another.


SIZE = 5000


class Part:
    """Is pickled as part of something larger."""

    def __init__(self, of, begin):
        self.view = memoryview(of)[begin : begin + SIZE]

    def __reduce_ex__(self, protocol):
        return memoryview, (pickle.PickleBuffer(self.view),)


class Odd(int):
    """A number that can be changed."""


def nowhere(place):
    pytest.fail(f"{place} was looked for")


def round_trip(units, place=None, find=nowhere):
    apart, segments = encode_arguments(units, place)
    assert apart
    # as it arrives: nobody else has it
    return protocol.read_arguments(memoryview(bytearray(frames.joined(segments))), find)


@pytest.mark.parametrize(
    "items", [[1, 2.5, "x", b"y", None, True, 1j], [(1, "x"), (2, "y")], [()], []]
)
def test_items_of_immutable_types_are_constant(items):
    assert are_constant(items)


@pytest.mark.parametrize("items", [[[]], [1, (1,)], [(1, [2])], [((1,),)], [Odd(1)], [{}], [set()]])
def test_anything_else_may_be_changed(items):
    assert not are_constant(items)


def test_a_buffer_of_several_units_is_sent_once_and_is_one_of_each():
    array = OutOfBand(bytes(SIZE))
    _, segments = encode_arguments([[array], [array], [array]])
    assert sum(map(len, segments)) < 2 * SIZE
    first, second, third = round_trip([[array], [array], [array]])
    first[0], second[0] = 1, 2
    assert [first[0], second[0], third[0]] == [1, 2, 0]


def test_parts_of_one_object_are_not_each_other():
    whole = bytearray(range(250)) * 40
    first, second = round_trip([[Part(whole, 0)], [Part(whole, 7)]])
    assert (first[0], second[0]) == (0, 7)
    assert bytes(second) == bytes(whole[7 : 7 + SIZE])


def test_a_shared_buffer_is_mapped_for_each_unit():
    array, sent = OutOfBand(b"x" * SIZE), OutOfBand(b"y" * SIZE)
    content = {b"here": bytes(array)}
    found = round_trip(
        [[array], [sent], [array]],
        lambda raw: b"here" if raw.obj is array else None,
        lambda place: memoryview(bytearray(content[place])),
    )
    assert [bytes(one[:1]) for one in found] == [b"x", b"y", b"x"]
    found[0][0] = 0
    assert found[2][0] == ord("x")


@pytest.mark.parametrize(
    "references", [(1,), (LOCATOR + 1,), (2**31 - 1,)], ids=["a buffer", "a place", "far away"]
)
def test_references_to_nothing_are_refused(references):
    header = struct.pack(f"<{1 + len(references)}I", len(references), *references)
    body = (
        header
        + bytes(-len(header) % 16)
        + frames.joined(frames.pack(pickle.dumps([1]), [b"z" * SIZE]))
    )
    with pytest.raises(WireError, match="refer to buffer"):
        list(protocol._opened(references, [memoryview(b"")], nowhere))
    assert protocol.read_arguments(memoryview(body), nowhere) == [1]


@pytest.mark.parametrize("body", [b"", b"\x01\0\0", b"\xff" * 4 + bytes(16), b"\2\0\0\0"])
def test_nonsense_is_refused(body):
    with pytest.raises(WireError):
        protocol.read_arguments(memoryview(body), nowhere)


# Outcomes of several items travel together and arrive as they would have alone.


def crossed(outcomes, first=0):
    """The outcomes as the pool has them."""
    stop = first + len(outcomes)
    # as transport hands it over, a body can be written to
    received = ReceivedOutcomes(memoryview(bytearray().join(outcomes.encode())), first, stop)
    return received.of(first, stop)


def gathered(*values):
    outcomes = Outcomes()
    for value in values:
        outcomes.add(value)
    return outcomes


@pytest.mark.parametrize(
    "values",
    [[1, "two", None, 3.0, b"4", True, (5, "six", None)], [[1], {2: 3}, {4}, (5, [6])], [object]],
    ids=["plain", "objects", "alone"],
)
def test_values_arrive_as_they_were(values):
    assert crossed(gathered(*values)) == (values, {})


def test_an_array_that_is_used_again_arrives_as_it_was_at_its_time():
    frame, outcomes = np.zeros(10_000), Outcomes()
    for number in range(3):
        frame += 1
        outcomes.add((number, frame))
        outcomes.pickle_mutable()
    values, _ = crossed(outcomes)
    assert [(number, float(array[0])) for number, array in values] == [(0, 1), (1, 2), (2, 3)]
    assert all(array.flags.writeable for _, array in values)


def test_equal_results_are_objects_of_their_own():
    shared = [1, 2]
    values, _ = crossed(gathered(shared, shared))
    assert values == [shared, shared]
    assert values[0] is not values[1]


@pytest.mark.parametrize(
    "bad,text",
    [
        pytest.param((i for i in range(3)), "pickle", id="not pickled"),
        pytest.param(Refuses(), "could not be read", id="raises when read"),
        pytest.param(Refuses(exits=True), "could not be read", id="exits when read"),
    ],
)
def test_what_cannot_be_pickled_or_read_spoils_no_other_and_is_the_error_of_its_item(bad, text):
    values, errors = crossed(gathered([1], bad, [3]), first=10)
    assert [values[0], values[2]] == [[1], [3]]
    assert list(errors) == [11]
    assert isinstance(errors[11], MaybeEncodingError)
    assert text in str(errors[11])


def test_errors_and_skipped_items_are_listed_by_item():
    outcomes = gathered(1)
    outcomes.fail(KeyError("bad"))
    outcomes.skip()
    outcomes.add(4)
    values, errors = crossed(outcomes, first=20)
    assert values == [1, None, None, 4]
    assert isinstance(errors[21], KeyError)
    assert errors[22] is None
    assert "KeyError" in str(errors[21].__cause__)


def test_a_part_of_what_came_can_be_looked_at():
    outcomes = gathered(0, 1, 2, 3)
    outcomes.fail(KeyError("bad"))
    received = ReceivedOutcomes(memoryview(frames.joined(outcomes.encode())), 100, 105)
    assert received.of(101, 103) == ([1, 2], {})
    values, errors = received.of(103, 105)
    assert values == [3, None]
    assert list(errors) == [104]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no pickle",
        frames.joined(codec.dumps(([1], {}, []))),
        frames.joined(codec.dumps("text")),
    ],
    ids=["nothing", "nonsense", "too few", "another thing"],
)
def test_nonsense_is_the_error_of_each_item_that_is_asked_for(body):
    # what a hostile worker announces costs no memory
    received = ReceivedOutcomes(memoryview(body), 0, 2**62)
    values, errors = received.of(5, 8)
    assert values == [None] * 3
    assert [type(errors[n]) for n in (5, 6, 7)] == [MaybeEncodingError] * 3


def test_large_buffers_of_a_lone_result_are_not_copied_into_its_pickle():
    array = np.zeros(100_000)
    segments = gathered(array).encode()
    assert any(len(segment) == array.nbytes for segment in segments)
