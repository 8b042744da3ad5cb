"""Output reaches terminal, log and memory; none of the three harms another."""

import os
from pathlib import Path

import pytest

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.loop import Loop
from fiber._agent.supervisor.output import LineTail, LogFile, OutputRelay


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


class Terminal:
    """Fake sink that keeps the bytes written."""

    def __init__(self):
        self.pieces = []
        self.is_full = False

    def write(self, data):
        if data:
            self.pieces.append(data)


class World:
    def __init__(self, path, prefix=b""):
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.owned = Descriptors()
        self.terminal = Terminal()
        self.tail = LineTail(3)
        self.failures = []
        self.ended = []
        self.path = path
        self.log = LogFile(path, self.owned, self.failures.append)
        reader, self.writer = os.pipe()
        os.set_blocking(reader, False)
        self.relay = OutputRelay(
            self.owned.own(reader),
            loop=self.loop,
            descriptors=self.owned,
            sink=self.terminal,
            log=self.log,
            tail=self.tail,
            partial_line=0.1,
            prefix=prefix,
            on_end=self.ended.append,
        )
        # a timer that is always due, so that no turn waits
        self.tick()

    def tick(self):
        self.loop.call_later(0, self.tick)

    def write(self, data):
        os.write(self.writer, data)
        self.loop.run_once()

    def hang_up(self):
        if self.writer is not None:
            os.close(self.writer)
            self.writer = None

    def close(self):
        self.hang_up()
        self.relay.close()
        self.log.close()
        self.loop.close()
        self.owned.close_all()


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "log")
    yield world
    world.close()


def test_whole_lines_pass_at_once(world):
    world.write(b"one\ntwo\nthr")

    assert world.terminal.pieces == [b"one\ntwo\n"]
    assert world.path.read_bytes() == b"one\ntwo\n"


def test_the_beginning_of_a_line_passes_after_a_tenth_of_a_second(world):
    world.write(b"50%")
    assert world.terminal.pieces == []

    world.clock.time = 0.11
    world.loop.run_once()

    assert world.terminal.pieces == [b"50%"]


def test_a_line_that_is_completed_in_time_comes_in_one_piece(world):
    world.write(b"a")
    world.clock.time = 0.05
    world.write(b"b\n")
    world.clock.time = 1.0
    world.loop.run_once()

    assert world.terminal.pieces == [b"ab\n"]


def test_the_log_has_whole_lines_whatever_the_terminal_showed(world):
    world.write(b"50%")
    world.clock.time = 0.2
    world.loop.run_once()
    assert not world.path.exists()

    world.write(b" done\n")

    assert world.terminal.pieces == [b"50%", b" done\n"]
    assert world.path.read_bytes() == b"50% done\n"


def test_the_end_brings_the_last_words(world):
    world.write(b"no newline")

    world.relay.finish()

    assert world.terminal.pieces == [b"no newline"]
    assert world.path.read_bytes() == b"no newline"
    assert world.tail.lines() == ("no newline",)


def test_all_that_is_in_the_pipe_is_drained_at_the_end(world):
    data = b"x" * 50_000 + b"\n"
    os.write(world.writer, data)
    world.hang_up()

    world.relay.finish()

    assert b"".join(world.terminal.pieces) == data
    assert world.ended == [world.relay]


def test_a_pipe_that_others_hold_stays_open_after_the_end(world):
    world.relay.finish()
    assert world.ended == []

    world.write(b"a grandchild\n")

    assert world.terminal.pieces == [b"a grandchild\n"]


def test_each_line_has_the_prefix_on_the_terminal_alone(tmp_path):
    world = World(tmp_path / "log", prefix=b"[w] ")
    world.write(b"one\ntwo\n")
    world.close()

    assert world.terminal.pieces == [b"[w] one\n[w] two\n"]
    assert world.path.read_bytes() == b"one\ntwo\n"


def test_nothing_is_read_while_the_terminal_is_full(world):
    world.terminal.is_full = True
    world.write(b"one\n")
    world.write(b"two\n")
    assert world.terminal.pieces == []

    world.terminal.is_full = False
    world.relay.resume()
    world.loop.run_once()

    assert world.terminal.pieces == [b"one\ntwo\n"]


def test_the_last_words_come_through_a_full_terminal(world):
    world.terminal.is_full = True
    world.write(b"one\n")
    world.hang_up()

    world.relay.finish()

    assert world.terminal.pieces == [b"one\n"]


def test_a_log_that_cannot_be_written_is_reported_once_and_stops_nothing(tmp_path):
    world = World(tmp_path / "missing" / "log")
    world.write(b"one\n")
    world.write(b"two\n")
    world.close()

    assert world.terminal.pieces == [b"one\n", b"two\n"]
    assert len(world.failures) == 1
    assert "is incomplete from here" in world.failures[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once_and_stops_nothing(tmp_path):
    (tmp_path / "log").symlink_to("/dev/full")
    world = World(tmp_path / "log")
    world.write(b"one\n")
    world.write(b"two\n")
    world.close()

    assert world.terminal.pieces == [b"one\n", b"two\n"]
    assert len(world.failures) == 1
    assert "No space left" in world.failures[0]


def test_a_silent_job_has_no_log_file(world):
    world.hang_up()
    world.relay.finish()

    assert not world.path.exists()


def test_logs_are_for_their_owner_alone(world):
    world.write(b"x\n")

    assert world.path.stat().st_mode & 0o077 == 0
