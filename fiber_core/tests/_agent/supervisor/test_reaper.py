"""The kernel's reports about children are passed on once and exactly."""

import os
import signal
import time

import pytest

from fiber._agent.supervisor import runner


@pytest.fixture
def child():
    """Makes a child that runs a function and ends; killed at the end of the test."""
    children = []

    def make(function):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            try:
                function()
            finally:
                os._exit(0)
        children.append(pid)
        return pid

    yield make
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def wait_for(count, before=lambda pid: None):
    found = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += runner.reap(before)
        time.sleep(0.001)
    return found


def pause():
    signal.alarm(20)
    while True:
        signal.pause()


def test_unchanged_children_are_not_reported(child):
    child(pause)

    assert list(runner.reap(lambda pid: None)) == []


def test_an_end_has_its_wait_status_and_memory(child):
    pid = child(lambda: os._exit(7))

    (ended,) = wait_for(1)

    assert isinstance(ended, runner.Ended)
    assert (ended.pid, ended.wait_status) == (pid, 7 << 8)
    assert ended.peak_memory > 1 << 20


def test_stop_and_continue_are_reported(child):
    pid = child(pause)
    os.kill(pid, signal.SIGSTOP)
    assert wait_for(1) == [runner.Change(pid, signal.SIGSTOP)]

    os.kill(pid, signal.SIGCONT)

    assert wait_for(1) == [runner.Change(pid, None)]


def test_the_group_is_signalled_while_the_id_is_still_the_childs(child):
    reader, writer = os.pipe()

    def with_grandchild():
        grandchild = os.fork()
        if grandchild == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pause()
        os.write(writer, b"%d\n" % grandchild)

    child(with_grandchild)
    os.read(reader, 100)

    wait_for(1, before=runner.kill_group)

    # the grandchild held the pipe: its end is the pipe's
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_many_ends_are_reported_by_one_call(child):
    pids = {child(lambda: None) for _ in range(20)}

    assert {event.pid for event in wait_for(20)} == pids


def test_signals_to_those_that_have_ended_are_no_error(child):
    pid = child(lambda: None)
    wait_for(1)

    runner.kill_group(pid)
    runner.signal_process(pid, signal.SIGTERM)
