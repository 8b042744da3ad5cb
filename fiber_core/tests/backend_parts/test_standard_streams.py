"""Standard streams of this program, whatever others have made of them."""

import contextlib
import io
import os

import pytest

from fiber.backend_parts.standard_streams import pieces, write_all
from wire_world import in_thread

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
