"""Output of a job reaches its parent in order, with or without a reader."""

import os

import pytest

import fiber
from children import start
from fiber._agent.job.parent_link import OutputForwarder
from waiting import until

PIECE = b"x" * (1 << 16)


def taken(forwarder):
    found = []
    while (message := forwarder.take()) is not None:
        found.append((message.stream, message.data))
    return found


class TestOnTheWay:
    def test_what_was_written_is_taken_in_its_order_and_in_pieces(self):
        woken = []
        forwarder = OutputForwarder(lambda: woken.append(1))
        forwarder.set_connected(True)

        forwarder.put(1, b"one\n")
        forwarder.put(2, PIECE + b"two\n")

        assert woken == [1, 1]
        assert taken(forwarder) == [(1, b"one\n"), (2, PIECE), (2, b"two\n")]
        assert taken(forwarder) == []

    def test_writers_are_held_back_while_the_parent_takes_less_than_they_write(self):
        forwarder = OutputForwarder(lambda: None)
        forwarder.set_connected(True)
        for _ in range(17):
            forwarder.put(1, PIECE)

        assert forwarder.is_full
        assert not forwarder.may_resume
        taken(forwarder)
        assert forwarder.may_resume
        forwarder.resume()
        assert not forwarder.is_full

    def test_without_a_parent_writers_go_on_and_lost_bytes_are_counted(self):
        forwarder = OutputForwarder(lambda: None)
        for _ in range(20):
            forwarder.put(1, PIECE)

        assert not forwarder.is_full
        first, *others = taken(forwarder)
        assert first == (2, f"fiber: {4 * len(PIECE)} bytes of output are in the job's log alone\n".encode())  # fmt: skip
        assert len(others) == 16


def write_lines(words, count):
    for number in range(count):
        print(words, number)
    os.write(2, b"to stderr\n")


def write_partial_line(seen):
    os.write(1, b"a beginning")
    seen.get(timeout=60)
    os.write(1, b", an end\n")


def start_one_that_says(words):
    child = start(write_lines, words, 1)
    child.join()


@pytest.mark.usefixtures("remote_host")
class TestRemoteJobs:
    @pytest.mark.parametrize(
        "target, words",
        [(write_lines, ("hello", 500)), (start_one_that_says, ("deep",))],
        ids=["of a process", "of a process of a process"],
    )
    def test_output_is_written_by_the_parent(self, capfd, target, words):
        start(target, *words).join()
        shown = capfd.readouterr()
        count = 500 if target is write_lines else 1
        assert shown.out.splitlines() == [f"{words[0]} {number}" for number in range(count)]
        assert shown.err == "to stderr\n"

    def test_the_beginning_of_a_line_does_not_wait_for_its_end(self, capfd):
        seen = fiber.Queue()
        process = start(write_partial_line, seen)
        shown = ""

        def begun():
            nonlocal shown
            shown += capfd.readouterr().out
            return shown == "a beginning"

        until(begun)
        seen.put(True)
        process.join()
        assert capfd.readouterr().out == ", an end\n"
