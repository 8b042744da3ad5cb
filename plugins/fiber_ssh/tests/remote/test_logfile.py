"""A job's output on disk: complete, in order, from any place on."""

import pytest

from fiber_ssh.remote.logfile import LogReader, LogWriter, offset_of_tail


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "log")


def write(path, *pieces):
    writer = LogWriter(path)
    for stream, data in pieces:
        writer.write(stream, data)
    writer.close()


def read(path, offset=0, skip=0):
    reader = LogReader(path, offset)
    found = []
    while (piece := reader.read()) is not None:
        found.append((piece[0], piece[1][skip:]))
        skip = 0
    reader.close()
    return found


def test_pieces_come_in_their_order_with_their_streams(path):
    write(path, (0, b"out\n"), (1, b"err\n"), (0, b"more"))

    assert read(path) == [(0, b"out\n"), (1, b"err\n"), (0, b"more")]


def test_a_large_piece_is_cut_and_nothing_of_it_lost(path):
    data = bytes(range(256)) * 1000
    write(path, (0, data))

    found = read(path)

    assert len(found) > 1
    assert b"".join(part for _, part in found) == data


def test_reading_goes_on_where_it_stopped_while_the_file_grows(path):
    write(path, (0, b"one"))
    reader = LogReader(path)
    assert reader.read() == (0, b"one")
    assert reader.read() is None

    write(path, (1, b"two"))

    assert reader.read() == (1, b"two")
    assert read(path, reader.offset) == []
    reader.close()


def test_half_a_piece_is_none_yet(path):
    write(path, (0, b"whole"), (0, b"half"))
    with open(path, "r+b") as file:
        file.truncate(file.seek(0, 2) - 1)

    assert read(path) == [(0, b"whole")]


@pytest.mark.parametrize(
    "count,lines",
    [(0, []), (1, ["d"]), (2, ["c", "d"]), (3, ["b", "c", "d"]), (9, ["a", "b", "c", "d"])],
)
def test_the_tail_begins_where_the_last_lines_do(path, count, lines):
    write(path, (0, b"a\nb\n"), (1, b"c\n"), (0, b"d"))

    found = b"".join(part for _, part in read(path, *offset_of_tail(path, count)))

    assert found.decode().split() == lines


def test_a_line_of_several_pieces_is_one_line(path):
    write(path, (0, b"one "), (0, b"line\nlast "), (0, b"one"))

    assert b"".join(p for _, p in read(path, *offset_of_tail(path, 1))) == b"last one"
    assert offset_of_tail(path, 2) == (0, 0)


def test_the_tail_of_nothing_is_nothing(path):
    write(path)

    assert offset_of_tail(path, 3) == (0, 0)
