"""What a job writes comes to its parent, in order, whether or not anybody is there to read it."""

import os
import time

import pytest

import fiber
from fiber._agent.job.output_forwarder import Echoes
from fiber._agent.supervisor.messages import Output

PIECE = b"x" * (1 << 16)


def taken(echoes):
    found = []
    while (message := echoes.take()) is not None:
        found.append((message.stream, message.data))
    return found


class TestOnTheWay:
    def test_what_was_written_is_taken_in_its_order(self):
        woken = []
        echoes = Echoes(lambda: woken.append(1))
        echoes.connected(True)

        echoes.put(1, b"one\n")
        echoes.put(2, b"two\n")

        assert woken == [1, 1]
        assert taken(echoes) == [(1, b"one\n"), (2, b"two\n")]
        assert taken(echoes) == []

    def test_what_is_large_comes_in_pieces(self):
        echoes = Echoes(lambda: None)
        echoes.put(1, PIECE * 2 + b"y")

        assert [len(data) for _, data in taken(echoes)] == [len(PIECE), len(PIECE), 1]

    def test_writers_are_held_back_while_the_parent_takes_less_than_they_write(self):
        echoes = Echoes(lambda: None)
        echoes.connected(True)
        for _ in range(17):
            echoes.put(1, PIECE)

        assert echoes.is_full
        assert not echoes.may_let_go
        taken(echoes)
        assert echoes.may_let_go
        echoes.let_go()
        assert not echoes.is_full

    def test_they_are_not_held_back_where_there_is_no_parent_and_it_is_told_what_is_missing(self):
        echoes = Echoes(lambda: None)
        for _ in range(20):
            echoes.put(1, PIECE)

        assert not echoes.is_full
        first, *others = taken(echoes)
        assert first == (2, f"fiber: {4 * len(PIECE)} bytes of output are in the job's log alone\n".encode())  # fmt: skip
        assert len(others) == 16

    def test_a_message_is_what_is_sent(self):
        echoes = Echoes(lambda: None)
        echoes.put(2, b"a")
        assert echoes.take() == Output(2, b"a")


def say(words, count):
    for number in range(count):
        print(words, number)
    os.write(2, b"to stderr\n")


def say_partly():
    os.write(1, b"a beginning")
    time.sleep(0.5)
    os.write(1, b", an end\n")


def start_one_that_says(words):
    child = fiber.Process(target=say, args=(words, 1))
    child.start()
    child.join()


@pytest.mark.usefixtures("far")
class TestFarAway:
    def test_what_a_process_writes_is_shown_here(self, capfd):
        process = fiber.Process(target=say, args=("hello", 500))
        process.start()
        process.join()
        shown = capfd.readouterr()

        assert shown.out.splitlines() == [f"hello {number}" for number in range(500)]
        assert shown.err == "to stderr\n"

    def test_and_what_a_process_of_a_process_writes(self, capfd):
        process = fiber.Process(target=start_one_that_says, args=("deep",))
        process.start()
        process.join()

        assert capfd.readouterr().out == "deep 0\n"

    def test_the_beginning_of_a_line_does_not_wait_for_its_end(self, capfd):
        process = fiber.Process(target=say_partly)
        process.start()
        process.join()

        assert capfd.readouterr().out == "a beginning, an end\n"
