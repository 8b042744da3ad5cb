"""Messages between a pool and its workers are read as written, and nonsense is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks import protocol
from fiber._tasks.protocol import Done, Mode, Tasks
from fiber.exceptions import WireError

numbers = st.integers(0, 2**64 - 1)


@given(
    st.builds(
        Tasks,
        numbers,
        numbers,
        st.integers(0, 2**40),
        st.integers(2**40 + 1, 2**64 - 1),
        st.integers(1, 2**64 - 1),
        st.sampled_from([0, 1, 2, 64, 65, 66]),
        st.binary(min_size=16, max_size=16),
    )
)
def test_an_entry_is_read_as_it_was_written(tasks):
    read, items = protocol.read_tasks(memoryview(tasks.encode() + b"items"))
    assert read == tasks
    assert bytes(items) == b"items"


@given(
    st.builds(
        Done, numbers, st.integers(0, 9), st.integers(9, 99), st.floats(0, 1e9), st.integers(0, 2)
    )
)
def test_a_report_is_read_as_it_was_written(done):
    read, outcomes = protocol.read_done(memoryview(done.encode() + b"outcomes"))
    assert read == done
    assert bytes(outcomes) == b"outcomes"


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data):
    for read in (
        protocol.read_tasks,
        protocol.read_done,
        protocol.read_kept,
        protocol.read_entry,
        protocol.read_ask,
        protocol.read_function,
    ):
        with contextlib.suppress(WireError):
            read(memoryview(data))


@pytest.mark.parametrize(
    "tasks",
    [
        Tasks(1, 1, 5, 5, 1, 0, bytes(16)),
        Tasks(1, 1, 5, 6, 0, 0, bytes(16)),
        Tasks(1, 1, 5, 6, 1, 3, bytes(16)),
        Tasks(1, 1, 5, 6, 1, 32, bytes(16)),
    ],
    ids=["no items", "units of nothing", "no such mode", "no such flag"],
)
def test_an_entry_that_makes_no_sense_is_refused(tasks):
    with pytest.raises(WireError, match="makes no sense"):
        protocol.read_tasks(memoryview(tasks.encode()))


@pytest.mark.parametrize(
    "done",
    [
        Done(1, 5, 4, 0.1, 1),
        Done(1, 4, 5, -1.0, 1),
        Done(1, 4, 5, float("nan"), 1),
        Done(1, 4, 5, 0.1, 3),
    ],
    ids=["backwards", "negative time", "no time", "greedy"],
)
def test_a_report_that_makes_no_sense_is_refused(done):
    with pytest.raises(WireError, match="makes no sense"):
        protocol.read_done(memoryview(done.encode()))


def test_heads_keep_what_follows_on_a_multiple_of_sixteen_bytes():
    assert len(Tasks(1, 1, 0, 1, 1, Mode.MAP, bytes(16)).encode()) % 16 == 0
    assert len(Done(1, 0, 1, 0.1, 1).encode()) % 16 == 0
    assert protocol.DIGEST % 16 == 0


def test_a_digest_is_of_the_bytes_however_they_are_cut():
    assert protocol.digest([b"ab", b"c"]) == protocol.digest([b"a", b"bc"])
    assert protocol.digest([b"ab"]) != protocol.digest([b"ba"])


@given(numbers, numbers)
def test_small_bodies_are_read_as_they_were_written(first, second):
    assert protocol.read_kept(memoryview(protocol.kept(first, second))) == (first, second)
    assert protocol.read_entry(memoryview(protocol.entry(first))) == first


def test_a_function_body_has_its_digest_in_front():
    name = bytes(range(16))
    body = memoryview(b"".join(protocol.function(name, [b"pick", b"led"])))
    assert protocol.read_function(body) == (name, b"pickled")
    assert protocol.read_function(memoryview(name)) == (name, b"")
