"""Threads that are started as actions come, at most so many, and end when there is none."""

import threading

import pytest

from fiber._base.threads import ThreadPool
from waiting import until


def names(pool):
    return [thread for thread in threading.enumerate() if thread.name == "test-pool"]


@pytest.fixture
def pool():
    pool = ThreadPool("test-pool", 2)
    yield pool
    until(lambda: not names(pool))


def test_no_more_threads_run_than_there_may_be_and_all_actions_do(pool):
    go, running, done = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def act():
        running.release()
        go.wait(30)
        done.release()

    for _ in range(5):
        pool.submit(act)
    assert all(running.acquire(timeout=30) for _ in range(2))
    assert not running.acquire(blocking=False)
    assert len(names(pool)) == 2
    go.set()
    assert all(done.acquire(timeout=30) for _ in range(5))


def test_an_action_that_fails_is_logged_and_ends_no_thread(pool, caplog):
    done = threading.Event()

    def fail():
        raise SystemExit(3)

    pool.submit(fail)
    pool.submit(done.set)
    assert done.wait(30)
    until(lambda: caplog.records)
    assert "an action on a thread of test-pool failed" in caplog.text


def test_where_no_thread_can_be_had_the_action_is_not_kept(pool, monkeypatch):
    ran = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError))
        with pytest.raises(RuntimeError):
            pool.submit(lambda: pytest.fail("it was refused"))
    pool.submit(ran.set)
    assert ran.wait(30)


def test_what_has_not_begun_can_be_dropped():
    pool, go, ran = ThreadPool("test-pool", 1), threading.Event(), threading.Event()
    started = threading.Event()

    def hold():
        started.set()
        go.wait(30)

    pool.submit(hold)
    assert started.wait(30)
    pool.submit(ran.set)
    pool.clear()
    go.set()
    until(lambda: not names(pool))
    assert not ran.is_set()
