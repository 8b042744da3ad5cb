"""The last words of a pipe's sender, whatever ends it."""

from __future__ import annotations

import os
import signal

import pytest

import fiber
from children import PATIENCE, finish, start

MESSAGES = 20


def send_and_end(end, size, ending):
    for number in range(MESSAGES):
        end.send((number, bytes(size)))
    if ending == "close":
        end.close()
    if ending in ("close", "exit"):
        os._exit(0)
    os.kill(os.getpid(), ending)


def received(end):
    numbers = []
    try:
        while end.poll(PATIENCE):
            numbers.append(end.recv()[0])
    except EOFError:
        return numbers
    raise AssertionError(f"no end came after {numbers}")


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("ending", ["exit", signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_was_sent_arrives_however_the_sender_ends(shared_runtime, ending, size):
    reader, writer = fiber.Pipe(duplex=False)
    with reader:
        child = start(send_and_end, writer, size, ending)
        writer.close()

        assert received(reader) == list(range(MESSAGES))
        child.join(PATIENCE)


@pytest.mark.any_backend
def test_a_closed_end_has_sent_all_also_where_the_kernel_does_not_keep_it(shared_runtime):
    reader, writer = fiber.Pipe(duplex=False)
    with reader:
        child = start(send_and_end, writer, 10, "close")
        writer.close()

        assert received(reader) == list(range(MESSAGES))
        finish(child)
