"""Process: start, join, exit codes, signals, which objects are passed to it and which are not."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait

import pytest

import fiber
from waiting import PATIENCE, until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def describe(path):
    me, parent = fiber.current_process(), fiber.parent_process()
    path.write_text(f"{me.name} {me.pid == os.getpid()} {parent.name} {parent.pid}")


def start_child(path):
    child = fiber.Process(target=describe, args=(path,), name="grandchild")
    child.start()
    child.join(PATIENCE)
    sys.exit(child.exitcode)


def wait_for_signal(path):
    try:
        # to be told to end as soon as its file is there is to be told within this, too
        path.write_text(str(os.getpid()))
        while True:
            # signal.pause() would miss a signal that comes right before it
            time.sleep(0.05)
    except KeyboardInterrupt:
        sys.exit(7)


def run(target, *args, **options):
    process = fiber.Process(target=target, args=args, **options)
    process.start()
    process.join(PATIENCE)
    return process


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_are_those_of_the_child(code):
    process = run(sys.exit, code)
    assert process.exitcode == code
    assert f"parent={os.getpid()} stopped exitcode={code}" in repr(process)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_signal_is_a_negative_exit_code(signum):
    assert run(lambda: os.kill(os.getpid(), signum)).exitcode == -signum


def test_a_child_may_have_children_who_know_themselves_and_their_parent(tmp_path):
    path = tmp_path / "grandchild"
    process = run(start_child, path, name="between")
    assert process.exitcode == 0
    assert path.read_text() == f"grandchild True between {process.pid}"


@pytest.fixture
def waiting(tmp_path):
    """A process that waits for a signal."""
    path = tmp_path / "pid"
    process = fiber.Process(target=wait_for_signal, args=(path,))
    assert process.pid is None
    process.start()
    until(lambda: path.exists() and path.read_text())
    yield process
    process.kill()
    process.join(PATIENCE)


@pytest.mark.parametrize(
    "end,code",
    [("terminate", -signal.SIGTERM), ("kill", -signal.SIGKILL), ("interrupt", 7)],
    ids=["sigterm", "sigkill", "as by Ctrl-C"],
)
def test_one_is_ended_and_its_sentinel_tells(waiting, end, code):
    assert wait([waiting.sentinel], 0) == []
    getattr(waiting, end)()
    assert wait([waiting.sentinel], PATIENCE) == [waiting.sentinel]
    assert not waiting.is_alive()
    assert waiting.exitcode == code
    assert waiting not in fiber.active_children()


@pytest.mark.parametrize(
    "make,text",
    [(lambda: [threading.Lock()], "pickle"), (multiprocessing.Pipe, "use fiber's own")],
    ids=["a lock", "a pipe of the stdlib"],
)
def test_what_cannot_be_sent_raises_in_start_and_leaves_nothing(make, text):
    process = fiber.Process(target=print, args=make())
    with pytest.raises(TypeError, match=text):
        process.start()
    assert process.exitcode is None
    assert process not in fiber.active_children()


def test_a_daemon_may_not_have_children(tmp_path):
    process = run(start_child, tmp_path / "none", daemon=True)
    assert process.exitcode == 1
    assert not (tmp_path / "none").exists()
