"""Processes that left their job's group end with the supervisor, save detached supervisors."""

import os
import signal
import sys

import pytest

from fiber._agent.supervisor import kernel, orphans
from supervised import exit_code_of, is_alive, until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")


def run_as_reaper(function):
    """Run a function in a process that adopts orphans, then end them; returns what it wrote."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os.close(reader)
        kernel.adopt_orphans()
        function(writer)
        orphans.end_descendants(timeout=20)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def orphan(writer, act):
    """Leave a process behind whose parent has ended."""
    middle = os.fork()
    if middle == 0:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            act()
            os.write(writer, f"{os.getpid()}\n".encode())
            os.close(writer)
            signal.alarm(30)
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(middle, 0)


@linux
def test_orphans_are_killed(tmp_path):
    def leave(writer):
        for _ in range(3):
            orphan(writer, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))

    pids = [int(word) for word in run_as_reaper(leave).split()]

    until_gone(*pids)


@linux
def test_children_of_orphans_are_killed_too():
    def leave(writer):
        def act():
            if os.fork() == 0:
                os.setsid()

        orphan(writer, act)

    pids = [int(word) for word in run_as_reaper(leave).split()]

    until_gone(*pids)


@linux
def test_a_supervisor_within_a_job_is_asked_and_not_killed():
    def leave(writer):
        def act():
            kernel.set_title(orphans.SUPERVISOR_TITLE)
            signal.signal(
                signal.SIGTERM, lambda *_: (os.write(kept, b"asked in order\n"), os._exit(0))
            )

        kept = os.dup(writer)
        reader, ready = os.pipe()
        orphan(ready, act)
        os.close(ready)
        os.read(reader, 100)

    assert run_as_reaper(leave) == "asked in order\n"


@linux
def test_a_supervisor_of_detached_jobs_lives_on():
    def leave(writer):
        reader, ready = os.pipe()
        orphan(ready, lambda: (os.close(writer), kernel.set_title(orphans.DETACHED_TITLE)))
        os.close(ready)
        os.write(writer, os.read(reader, 100))

    pid = int(run_as_reaper(leave))

    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_nothing_is_done_where_there_are_none():
    assert exit_code_of(lambda: orphans.end_descendants(timeout=20) or 0) == 0
