"""Output of jobs is written to this process's own, by a thread that waits for a slow reader."""

import os

import pytest

from fiber._launch.remote_monitor import OutputPrinter


@pytest.fixture
def shown():
    shown = OutputPrinter()
    yield shown
    shown.close()


def test_each_stream_gets_its_own_in_order(shown, capfd):
    shown.write(1, b"one\n")
    shown.write(2, b"two\n")
    shown.write(1, b"three\n")
    shown.close()

    found = capfd.readouterr()
    assert (found.out, found.err) == ("one\nthree\n", "two\n")


def test_a_slow_reader_holds_up_no_writer(shown):
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    try:
        for number in range(64):
            shown.write(1, bytes([number]) * (1 << 14))
        read = b""
        while len(read) < 64 << 14:
            read += os.read(reader, 1 << 16)
    finally:
        shown.close()
        os.dup2(saved, 1)
        for descriptor in (saved, reader, writer):
            os.close(descriptor)

    assert read == b"".join(bytes([number]) * (1 << 14) for number in range(64))


def test_other_process_ids_have_no_owner(shown, capfd):
    shown.write(7, b"nonsense")
    shown.close()

    assert capfd.readouterr() == ("", "")


def test_settling_returns_once_output_is_written(shown, capfd):
    for number in range(50):
        shown.write(1, b"%d\n" % number)
        shown.settle(60)

        assert capfd.readouterr().out == f"{number}\n"


def test_settling_on_a_stuck_reader_times_out(shown):
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    try:
        shown.write(1, bytes(1 << 20))
        shown.settle(0.05)

        read = 0
        while read < 1 << 20:
            read += len(os.read(reader, 1 << 16))
    finally:
        shown.close()
        os.dup2(saved, 1)
        for descriptor in (saved, reader, writer):
            os.close(descriptor)
