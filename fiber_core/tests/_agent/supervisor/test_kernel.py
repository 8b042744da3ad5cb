"""System calls beyond POSIX."""

import os
import select
import signal
import sys

import pytest

from fiber._agent.supervisor import kernel
from supervised import exit_code_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")


def readable(watch, timeout):
    poll = select.poll()
    poll.register(watch.fileno(), select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def test_the_end_of_a_process_is_seen():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    watch = kernel.ProcessWatch(pid)
    assert not readable(watch, 0)

    os.close(writer)

    assert readable(watch, 20)
    watch.close()
    watch.close()
    os.waitpid(pid, 0)
    os.close(reader)


def test_a_process_that_is_not_there_cannot_be_watched():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

    with pytest.raises(ProcessLookupError):
        kernel.ProcessWatch(pid)


@linux
def test_a_child_dies_with_its_parent():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        signal.alarm(20)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            kernel.die_with_parent(os.getppid())
            os.write(writer, b"x")
            while True:
                signal.pause()
        signal.pause()
    os.close(writer)
    assert os.read(reader, 1) == b"x"

    os.kill(parent, signal.SIGKILL)

    assert os.read(reader, 1) == b""
    os.waitpid(parent, 0)
    os.close(reader)


def test_a_parent_that_is_gone_already_is_noticed():
    assert exit_code_of(lambda: 0 if kernel.die_with_parent(1 << 22) else 3) == 3


def test_private_bytes_are_read_back_once(tmp_path):
    data = os.urandom(300_000)

    descriptor = kernel.private_descriptor(data, str(tmp_path))

    found = b""
    while piece := os.read(descriptor, 1 << 16):
        found += piece
    assert found == data
    assert list(tmp_path.iterdir()) == []
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@linux
def test_orphans_are_adopted_and_the_title_is_seen():
    def adopt():
        kernel.set_title("fiber-test-title-too-long")
        kernel.adopt_orphans()
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os.close(writer)
                os.read(reader, 1)
            os._exit(0)
        os.waitpid(middle, 0)
        os.close(writer)
        try:
            os.wait()
        except ChildProcessError:
            return 1
        with open("/proc/self/comm") as file:
            return 0 if file.read().strip() == "fiber-test-titl" else 2

    assert exit_code_of(adopt) == 0
