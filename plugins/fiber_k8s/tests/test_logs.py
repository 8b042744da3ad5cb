"""Lines of a kubelet's response to a request for a log, and how far a log was read."""

import pytest

from fiber_k8s.log_cursor import LogCursor
from fiber_k8s.logs import follow, last_lines
from fiber_k8s.timing import K8sTiming

#: recorded from a node that had removed the container
GONE = b"unable to retrieve container logs for containerd://646ee4c36f22f6e2"


class Answer:
    def __init__(self, *chunks):
        self._chunks = chunks

    def stream(self, size, decode_content):
        yield from self._chunks

    def close(self):
        pass


class Node:
    """Answers in turn, the last answer again and again."""

    timing = K8sTiming()

    def __init__(self, *answers):
        self._answers = [*answers]

    def path(self, *words):
        return "/".join(words)

    def open(self, verb, path, doing, *, query, timeout):
        return Answer(*(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]))


def test_lines_are_whole_however_they_come():
    assert last_lines(Node([b"on", b"e\ntwo\nth", b"ree"]), "pod", 3) == ("one", "two", "three")


@pytest.mark.parametrize("chunks", [[GONE], [GONE[:20], GONE[20:]]])
def test_a_nodes_words_about_a_log_that_is_gone_are_no_line_of_it(chunks, caplog):
    assert last_lines(Node(chunks), "pod-1", 3) == ()
    assert "the log of pod-1 is gone" in caplog.text


def test_nor_are_they_where_a_log_was_followed_until_its_container_went(caplog):
    stamped = b"2026-11-22T07:00:01.5Z one\n"
    lines = follow(Node([stamped, GONE], [GONE]), "pod", to_the_end=True)
    assert list(lines) == ["one"]
    assert caplog.text == ""


def test_a_program_may_write_the_same():
    said = b"it said: " + GONE
    assert last_lines(Node([said]), "pod", 3) == (said.decode(),)


def told(cursor, *lines, **how):
    return list(cursor.unread(iter(lines), **how))


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-11-21T12:00:05.123456789Z",
        "2026-11-21T13:00:05.123456789+01:00",
        "2026-11-21T05:30:05.123456789-06:30",
        "2026-11-21T12:00:05Z",
    ],
)
def test_what_comes_next_is_asked_for_in_utc_whatever_zone_the_node_is_in(stamp):
    cursor = LogCursor()
    assert told(cursor, f"{stamp} a") == ["a"]
    assert cursor.since() == {"sinceTime": "2026-11-21T12:00:04Z"}


def test_no_time_is_asked_for_before_a_line_was_read():
    assert LogCursor().since() == {}


def test_repeated_lines_are_dropped():
    cursor = LogCursor()
    lines = [f"2026-11-21T13:00:05.{part:09d}+01:00 {part}" for part in (1, 2, 2, 3)]
    assert told(cursor, *lines) == ["1", "2", "2", "3"]
    later = "2026-11-21T13:00:06.000000001+01:00 4"
    assert told(cursor, *lines, later) == ["4"]
    assert told(cursor, *lines, later) == []


def test_equal_lines_of_one_moment_are_as_many_as_they_are():
    cursor = LogCursor()
    line = "2026-11-21T12:00:05.1Z tick"
    assert told(cursor, line) == ["tick"]
    assert told(cursor, line, line, line) == ["tick", "tick"]


def test_two_streams_that_were_written_out_of_order_lose_and_double_nothing():
    cursor = LogCursor()
    out, err = "2026-11-21T12:00:05.000000009Z out", "2026-11-21T12:00:04.999999999Z err"
    assert told(cursor, out, err) == ["out", "err"]
    assert told(cursor, out, err) == []
    late = "2026-11-21T12:00:04.999999998Z late"
    assert told(cursor, out, err, late) == ["late"]


def test_zeros_at_the_end_of_a_time_make_it_no_later():
    cursor = LogCursor()
    lines = ["2026-11-21T12:00:05.5Z a", "2026-11-21T12:00:05.49Z b", "2026-11-21T12:00:05.51Z c"]
    assert told(cursor, *lines) == ["a", "b", "c"]
    assert told(cursor, *lines) == []


class TestTail:
    def test_lines_before_the_tail_are_skipped_afterwards_too(self):
        cursor = LogCursor()
        early, last = "2026-11-21T12:00:05.1Z early", "2026-11-21T12:00:05.2Z last"
        assert told(cursor, last, is_tail=True) == ["last"]
        assert told(cursor, early, last, "2026-11-21T12:00:05.3Z new") == ["new"]

    def test_lines_come_in_order(self):
        cursor = LogCursor()
        lines = ["2026-11-21T12:00:05.2Z out", "2026-11-21T12:00:05.1Z err"]
        assert told(cursor, *lines, is_tail=True) == ["out", "err"]
        assert told(cursor, *lines) == []

    def test_of_an_empty_log_all_comes_after(self):
        cursor = LogCursor()
        assert told(cursor, is_tail=True) == []
        assert told(cursor, "2026-11-21T12:00:05Z a") == ["a"]


def test_words_of_the_node_have_no_time():
    words = "unable to retrieve container logs for containerd://0123"
    cursor = LogCursor()
    assert told(cursor, words) == [words]
    assert cursor.since() == {}


def test_what_is_remembered_does_not_grow_with_the_log():
    cursor = LogCursor()
    for second in range(1000):
        told(cursor, f"2026-11-21T12:{second // 60:02d}:{second % 60:02d}.5Z x")
    assert sum(len(stamps) for stamps in cursor._read.values()) <= 2
