"""Standard streams of this program, whatever others have made of them."""

import contextlib
import io
import os
import queue
import threading

import pytest

from fiber.backend_parts.standard_streams import copy_input, pieces, write_all
from wire_world import in_thread, until

#: more than a pipe holds
MUCH = os.urandom(1 << 20)


@pytest.fixture
def pipe():
    with contextlib.ExitStack() as stack:
        reader, writer = os.pipe()
        ends = [
            stack.enter_context(os.fdopen(end, mode, 0))
            for end, mode in ((reader, "rb"), (writer, "wb"))
        ]
        yield ends


@pytest.mark.parametrize("blocks", [True, False])
def test_all_is_written_though_another_program_made_it_non_blocking(pipe, blocks):
    reader, writer = pipe
    os.set_blocking(writer.fileno(), blocks)
    answer = in_thread(lambda: write_all(writer.fileno(), MUCH))

    found = b""
    while len(found) < len(MUCH):
        found += reader.read(1 << 16)

    assert found == MUCH
    assert answer() is None


@pytest.mark.parametrize("blocks", [True, False])
def test_one_that_nobody_reads_is_an_error(pipe, blocks):
    reader, writer = pipe
    os.set_blocking(writer.fileno(), blocks)
    reader.close()

    with pytest.raises(BrokenPipeError):
        write_all(writer.fileno(), MUCH)


def test_what_is_typed_comes_at_once(pipe):
    reader, writer = pipe
    writer.write(b"typed\n")
    with io.BufferedReader(reader) as typed:
        came = pieces(typed)
        assert next(came) == b"typed\n"
        writer.close()
        assert list(came) == []


def test_input_is_passed_on_to_its_end_or_until_the_program_is_gone():
    taken, called = queue.SimpleQueue(), threading.Semaphore(0)
    copy_input(io.BytesIO(MUCH), taken.put, called.release)
    assert called.acquire(timeout=30)
    assert b"".join(taken.get() for _ in range(taken.qsize())) == MUCH

    def refuse(_):
        called.release()
        raise BrokenPipeError

    typed = io.BytesIO(MUCH)
    copy_input(typed, refuse, lambda: taken.put(b"the end"))
    assert called.acquire(timeout=30)
    until(lambda: "fiber-stdin" not in {thread.name for thread in threading.enumerate()})
    assert typed.tell() < len(MUCH)
    assert taken.empty()
