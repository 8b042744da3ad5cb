"""Process: start, join, exit codes, signals, which objects are passed to it and which are not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait

import pytest

import fiber
from waiting import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def exit_with(code):
    sys.exit(code)


def die_by(signum):
    os.kill(os.getpid(), signum)


def write(path, text):
    with open(path, "w") as stream:
        stream.write(text)


def say(text):
    print(text)


def describe(path):
    me, parent = fiber.current_process(), fiber.parent_process()
    write(path, f"{me.name} {me.pid == os.getpid()} {parent.name} {parent.pid}")


def start_child(path):
    child = fiber.Process(target=describe, args=(path,), name="grandchild")
    child.start()
    child.join(30)
    sys.exit(child.exitcode)


def wait_for_signal(path):
    write(path, str(os.getpid()))
    signal.pause()


def run(target, *args, **options):
    process = fiber.Process(target=target, args=args, **options)
    process.start()
    process.join(30)
    return process


def wait_for_file(path):
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


class Subclass(fiber.Process):
    def __init__(self, path):
        super().__init__(name="my own")
        self.path = path

    def run(self):
        write(self.path, self.name)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_are_those_of_the_child(code):
    assert run(exit_with, code).exitcode == code


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_signal_is_a_negative_exit_code(signum):
    assert run(die_by, signum).exitcode == -signum


def test_a_child_knows_itself_and_its_parent(tmp_path):
    path = tmp_path / "child"
    run(describe, path, name="the child")
    assert path.read_text() == f"the child True MainProcess {os.getpid()}"


def test_a_subclass_with_run_is_run(tmp_path):
    process = Subclass(tmp_path / "out")
    process.start()
    process.join(30)
    assert (tmp_path / "out").read_text() == "my own"


def test_a_child_may_have_children(tmp_path):
    path = tmp_path / "grandchild"
    process = run(start_child, path, name="between")
    assert process.exitcode == 0
    assert path.read_text() == f"grandchild True between {process.pid}"


@pytest.fixture
def waiting(tmp_path):
    """A process that waits for a signal."""
    process = fiber.Process(target=wait_for_signal, args=(tmp_path / "pid",))
    assert process.pid is None
    process.start()
    yield process
    process.kill()
    process.join(30)


def test_pid_and_ident_are_the_operating_systems(waiting, tmp_path):
    assert waiting.pid == waiting.ident == int(wait_for_file(tmp_path / "pid"))
    assert waiting.is_alive()
    assert waiting.exitcode is None


@pytest.mark.parametrize(
    "end,signum", [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)], ids=["term", "kill"]
)
def test_terminate_is_sigterm_and_kill_is_sigkill(waiting, end, signum):
    getattr(waiting, end)()
    waiting.join(30)
    assert not waiting.is_alive()
    assert waiting.exitcode == -signum


def test_the_sentinel_is_ready_once_the_child_has_ended(waiting):
    assert wait([waiting.sentinel], 0) == []
    waiting.terminate()
    assert wait([waiting.sentinel], 30) == [waiting.sentinel]
    assert waiting.exitcode == -signal.SIGTERM


def test_join_with_a_timeout_returns_in_time(waiting):
    waiting.join(0.05)
    assert waiting.is_alive()


def test_active_children_has_those_that_run(waiting):
    assert waiting in fiber.active_children()
    waiting.kill()
    waiting.join(30)
    assert waiting not in fiber.active_children()


def test_a_closed_process_says_so():
    process = fiber.Process(target=signal.pause)
    process.start()
    with pytest.raises(ValueError, match="Cannot close a process while it is still running"):
        process.close()
    process.kill()
    process.join(30)
    process.close()
    with pytest.raises(ValueError, match="process object is closed"):
        process.is_alive()


def test_a_process_is_started_once():
    process = run(say, "once")
    with pytest.raises(AssertionError, match="cannot start a process twice"):
        process.start()


def test_a_lambda_and_a_closure_are_targets(tmp_path):
    path = str(tmp_path / "out")
    text = "from a closure"

    def target():
        with open(path, "w") as stream:
            stream.write(text)

    assert run(target).exitcode == 0
    assert (tmp_path / "out").read_text() == text


def test_what_cannot_be_pickled_raises_in_start_and_leaves_nothing():
    process = fiber.Process(target=say, args=((i for i in range(3)),))
    with pytest.raises(TypeError, match="pickle"):
        process.start()
    assert process.exitcode is None
    assert process not in fiber.active_children()


def test_a_stdlib_pipe_is_refused_with_the_way_out():
    process = fiber.Process(target=say, args=multiprocessing.Pipe())
    with pytest.raises(TypeError, match="use fiber's own"):
        process.start()


def test_big_arguments_cross(tmp_path):
    path = tmp_path / "out"
    text = "x" * (20 * 2**20)
    assert run(write, path, text).exitcode == 0
    assert path.stat().st_size == len(text)


def test_a_daemon_may_not_have_children_and_ends_with_its_parent(tmp_path):
    process = run(start_child, tmp_path / "none", daemon=True)
    assert process.exitcode == 1
    assert not (tmp_path / "none").exists()


def test_names_and_repr_are_like_the_stdlibs():
    process = fiber.Process(target=say, args=("x",))
    assert process.name.startswith("Process-")
    assert f"name='{process.name}' parent={os.getpid()} initial>" in repr(process)
    process.start()
    process.join(30)
    assert "stopped exitcode=0" in repr(process)


def test_many_children_at_once_end_as_they_should():
    processes = [fiber.Process(target=exit_with, args=(code,)) for code in range(20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == list(range(20))
