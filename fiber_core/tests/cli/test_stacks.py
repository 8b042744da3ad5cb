"""``fiber stacks``: where processes are, those that hang in C code too; nobody else gets the signal."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

import fiber as mp
from fiber._agent import rundir
from fiber._runtime import runtime
from fiber._runtime.inspection import SIGNAL, StackFile
from fiber.cli.main import cli
from fiber.cli.stacks import Stacks, read_stacks, without_ours
from pool_tasks import pid
from waiting import PATIENCE, until


def hang(path):
    Path(path).touch()
    # holds the interpreter's lock as long as it takes
    re.match("(a+)+$", "a" * 60 + "b")


def invoke(*words):
    return CliRunner().invoke(cli, ["stacks", *words], prog_name="fiber")


def test_a_task_that_keeps_the_interpreter_to_itself_is_shown_where_it_is(tmp_path):
    with mp.Pool(1) as pool:
        worker = pool.apply(pid)
        pool.apply_async(hang, (tmp_path / "begun",))
        until((tmp_path / "begun").exists)
        # it is past that
        until(lambda: " in match" in invoke().stdout)

        done = invoke(runtime.current().run_id[:6])
        (told,) = json.loads(invoke("--json", "--pid", str(worker)).stdout)
    pool.join()

    assert done.exit_code == 0, done.output
    assert f"== the program, pid {os.getpid()} ==" in done.stdout
    ours, theirs = re.split(r"== PoolWorker-\d+ of pool-", done.stdout)
    assert f"(busy: hang), pid {worker} ==" in theirs
    assert "in test_a_task_that_keeps_the_interpreter_to_itself" in ours
    frames = [line.rpartition(" in ")[2] for line in theirs.splitlines() if "File" in line]
    # nothing of what called the task
    assert frames == ["match", "hang"]
    assert "in _run" in told["stacks"]


def test_processes_go_on_and_leave_nothing(tmp_path):
    with mp.Pool(1) as pool:
        worker, folder = pool.apply(pid), runtime.current().directory
        for _ in range(3):
            assert invoke().exit_code == 0
        assert pool.apply(pid) == worker
        assert len(list(folder.glob("*.stacks"))) == 2
        # it cannot remove its file itself
        os.kill(worker, signal.SIGKILL)
        assert pool.apply(pid) != worker
        until(lambda: len(list(folder.glob("*.stacks"))) == 2)
        pool.close()
        pool.join()
        until(lambda: len(list(folder.glob("*.stacks"))) == 1)


def test_one_that_cannot_answer_is_told_with_its_state():
    with mp.Pool(1) as pool:
        worker = pool.apply(pid)
        os.kill(worker, signal.SIGSTOP)
        done = invoke()
        # the pool may have replaced it by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    pool.join()

    assert re.search(rf"process {worker} does not answer: it is \w", done.stderr)


def test_a_process_that_does_not_listen_never_gets_the_signal(run_root):
    """Its default ends a process."""
    folder = rundir.create("0000000a", "fake")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (folder / "0000000a.stacks").write_text(f"{stranger.pid}\n")
        assert invoke().exit_code == 0
        stranger.communicate(b"\n", timeout=PATIENCE)
    rundir.remove(folder)

    assert stranger.returncode == 0


def test_a_program_that_handles_the_signal_itself_keeps_its_handler(tmp_path):
    taken = []
    signal.signal(SIGNAL, lambda *_: taken.append(True))
    try:
        file = StackFile(tmp_path, "me")
        file.close()
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, signal.SIG_DFL)

    assert taken == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_that_is_another_files_by_now_is_left_open(tmp_path):
    file = StackFile(tmp_path, "me")
    with (tmp_path / "other").open("w") as other:
        os.dup2(other.fileno(), file._descriptor)
        descriptor = file._descriptor
        file.close()
        os.write(descriptor, b"still open")
        os.close(descriptor)

    assert (tmp_path / "other").read_text() == "still open"


def test_one_that_has_ended_is_passed_over(tmp_path):
    gone = Stacks(2**22, tmp_path / "gone", 0)

    read_stacks([gone], PATIENCE)

    assert gone.text == ""


def test_a_run_must_be_named_where_there_are_several(run_root):
    assert "no run of yours on this host has processes here" in invoke().stderr
    folders = [rundir.create(f"0000000{end}", "fake") for end in "ab"]
    for folder in folders:
        (folder / "0000000a.stacks").touch()
    done = invoke()
    for folder in folders:
        rundir.remove(folder)

    assert done.exit_code == 1
    assert "2 runs of yours are here: 0000000a (" in done.stderr


def test_a_thread_of_the_programs_is_kept_and_fibers_are_counted():
    package = Path(mp.__file__).parent
    fibers = (
        f'Thread 1 (most recent call first):\n  File "{package}/_base/threads.py", line 2 in _run'
    )
    programs = 'Thread 2 (most recent call first):\n  File "/home/me/train.py", line 3 in load'

    shown = without_ours(f"{fibers}\n\n{programs}\n\n{fibers}\n")

    assert shown == f"{programs}\n\n{fibers}\n\n(1 more threads are Fiber's own; --all shows them)"
