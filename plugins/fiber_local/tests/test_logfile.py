"""Logs are read line by line, also while they grow."""

import pytest

from fiber_local.logfile import read_log


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def test_lines_come_without_their_newlines(log):
    log.write_bytes(b"one\n\ntwo \xff\nrest")

    assert list(read_log(log, interval=0.01)) == ["one", "", "two \ufffd", "rest"]


@pytest.mark.parametrize(
    "tail,lines", [(0, []), (1, ["rest"]), (2, ["two", "rest"]), (9, ["one", "two", "rest"])]
)
def test_the_tail_has_the_last_lines(log, tail, lines):
    log.write_bytes(b"one\ntwo\nrest")

    assert list(read_log(log, interval=0.01, tail=tail)) == lines


def test_a_missing_log_has_no_lines(log):
    assert list(read_log(log, interval=0.01)) == []
    assert list(read_log(log, interval=0.01, is_over=lambda: True)) == []


def test_following_reads_what_was_written_before_the_end_was_seen(log):
    steps = [lambda: None, lambda: log.write_bytes(b"one\ntw"), lambda: append(b"o\nlast")]

    def append(data):
        with log.open("ab") as file:
            file.write(data)

    def is_over():
        if steps:
            steps.pop(0)()
        return not steps

    assert list(read_log(log, interval=0.01, is_over=is_over)) == ["one", "two", "last"]


def test_following_can_begin_near_the_end(log):
    log.write_bytes(b"one\ntwo\nth")
    seen = []

    def is_over():
        if not seen:
            seen.append(True)
            with log.open("ab") as file:
                file.write(b"ree\nfour\n")
            return False
        return True

    assert list(read_log(log, interval=0.01, tail=2, is_over=is_over)) == ["two", "three", "four"]
