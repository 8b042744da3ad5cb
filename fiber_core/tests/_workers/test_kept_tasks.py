"""Failed tasks are kept where that is wanted, private, bounded, and run again as they were."""

import errno
import logging
import os
import pickle
import stat
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

import fiber
from fiber._workers import kept_tasks
from fiber.exceptions import FiberError, WorkerCrashedError
from pool_tasks import die_at, fail_at
from waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("shared_runtime")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fiber" / "failed"


@pytest.fixture
def pool():
    with fiber.Pool(2, keep_failed=True) as pool:
        yield pool
    pool.join()


def refuse(*args, **kwargs):
    raise KeyError(args, kwargs)


@pytest.mark.parametrize(
    "call, args, kwargs",
    [
        (lambda pool: pool.map(refuse, [[1, 2]]), ([1, 2],), {}),
        (lambda pool: pool.starmap(refuse, [(1, 2)]), (1, 2), {}),
        (lambda pool: pool.apply(refuse, (1,), {"b": 2}), (1,), {"b": 2}),
        (lambda pool: list(pool.imap(refuse, [None])), (None,), {}),
    ],
    ids=["map", "starmap", "apply", "imap"],
)
def test_an_error_runs_its_task_again_and_so_does_its_file(pool, call, args, kwargs):
    with pytest.raises(KeyError) as caught:
        call(pool)

    kept = caught.value.replay
    for again in (kept, pickle.loads(pickle.dumps(kept))):
        assert again.load()[1:] == (args, kwargs)
        with pytest.raises(KeyError) as second:
            again()
        assert second.value.args == (args, kwargs)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"fiber replay {kept.task} runs this task again"]


def test_of_an_executor_with_the_setting_and_of_a_task_that_killed_its_workers(monkeypatch, state):
    monkeypatch.setattr(kept_tasks, "_MOST", 2)
    with fiber.Executor(1, keep_failed=True, max_attempts=1) as executor:
        future = executor.submit(lambda x: 1 // x, 0)
        assert isinstance(future.exception(PATIENCE), ZeroDivisionError)
        crash = executor.submit(die_at, 3, bad=3).exception(PATIENCE)
        more = executor.submit(fail_at, 3, bad=3).exception(PATIENCE)

    with pytest.raises(ZeroDivisionError):
        future.exception().replay()
    assert isinstance(crash, WorkerCrashedError)
    assert crash.replay.load()[1:] == ((3,), {"bad": 3})
    # as many as are kept at most
    assert not hasattr(more, "replay")
    assert len(list(state.iterdir())) == 2


def test_nobody_else_can_read_what_is_kept(pool, state):
    with pytest.raises(ValueError, match="bad") as caught:
        pool.starmap(fail_at, [(1, 1)])

    path = Path(caught.value.replay.path)
    assert path.parent == state
    assert [stat.S_IMODE(one.stat().st_mode) for one in (state, path)] == [0o700, 0o600]
    path.chmod(0o640)
    with pytest.raises(FiberError, match="is not user .* alone, and what it says is not run"):
        kept_tasks.KeptTask(str(path)).load()
    path.unlink()
    with pytest.raises(FiberError, match="is not kept any more"):
        kept_tasks.KeptTask(str(path)).load()


def test_a_full_disk_costs_no_result_and_is_told_once(pool, monkeypatch, caplog, state):
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(kept_tasks, "_ready_folder", full)

    with caplog.at_level(logging.WARNING, "fiber"):
        for _ in range(2):
            with pytest.raises(ValueError, match="bad 1") as caught:
                pool.starmap(fail_at, [(number, 1) for number in range(4)])
            if hasattr(caught.value, "replay"):
                assert not Path(caught.value.replay.path).exists()

    (record,) = caplog.records
    assert "failed tasks are not kept any more: [Errno 28]" in record.getMessage()


def test_a_slow_disk_keeps_no_result_waiting_and_the_task_is_as_it_was(pool, monkeypatch, state):
    ready, go = kept_tasks._ready_folder, threading.Event()
    monkeypatch.setattr(
        kept_tasks, "_ready_folder", lambda: ready() if go.wait(PATIENCE) else state
    )
    case = bytearray(b"as it was" + bytes(2**20))

    error = pool.apply_async(refuse, (case,))
    with pytest.raises(KeyError) as caught:
        error.get(PATIENCE)
    assert pool.map(abs, [-1]) == [1]
    case[:] = bytes(len(case))
    kept = caught.value.replay
    assert not state.exists()
    go.set()

    assert Path(kept.path).parent == state
    assert kept_tasks.KeptTask(kept.path).load()[1][0].startswith(b"as it was")


def test_a_pool_that_ends_has_written_what_failed(state):
    with fiber.Executor(1, keep_failed=True) as executor:
        failed = [executor.submit(refuse, number) for number in range(5)]
    threads = {thread.name for thread in threading.enumerate()}

    assert len(list(state.iterdir())) == len(failed)
    assert not [name for name in threads if name.endswith("-keeper")]


def test_nothing_is_kept_where_nobody_wants_it(state):
    with fiber.Pool(1) as pool, pytest.raises(ValueError, match="bad") as caught:
        pool.starmap(fail_at, [(1, 1)])
    pool.join()

    assert not hasattr(caught.value, "replay")
    assert not state.exists()


def test_the_oldest_of_too_many_are_removed(monkeypatch, state):
    state.mkdir(parents=True, mode=0o700)
    for number in range(5):
        (state / f"0000000a-{number}.task").touch(0o600)
        os.utime(state / f"0000000a-{number}.task", (number, number))
    monkeypatch.setattr(kept_tasks, "_MOST_FILES", 2)
    with fiber.Pool(1, keep_failed=True) as pool, pytest.raises(ValueError, match="bad"):
        pool.starmap(fail_at, [(1, 1)])
    pool.join()

    assert [kept.task for kept in kept_tasks.kept()][:2] == ["0000000a-3", "0000000a-4"]
