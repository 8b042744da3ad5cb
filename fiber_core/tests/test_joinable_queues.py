"""Queues of tasks: what is unfinished, who waits for it, what becomes of a dead reader's."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import pytest

import fiber
import soak
from children import PATIENCE, finish, start
from fiber._runtime import runtime

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def joining(tasks):
    """An event that is set when a thread has joined the tasks."""
    done = threading.Event()
    threading.Thread(target=lambda: (tasks.join(), done.set()), daemon=True).start()
    return done


# what children do


def take(tasks, results, count):
    results.put([tasks.get() for _ in range(count)])
    signal.pause()


def take_and_end(tasks, results, code):
    results.put(tasks.get())
    sys.exit(code)


def put_more_then_finish(tasks):
    depth = tasks.get()
    while depth is not None:
        for _ in range(2 if depth else 0):
            tasks.put(depth - 1)
        tasks.task_done()
        depth = tasks.get()


def take_a_queue(tasks, results, go):
    inner = tasks.get()
    inner.put("from one that died")
    results.put("taken")
    go.get()


def put_through(tasks):
    tasks.get().put("from the other")
    tasks.task_done()


def note_each(tasks, path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        os.write(fd, b"%d\n" % tasks.get())
        tasks.task_done()


def die_after(path, count, child):
    """Kill a child once so many tasks were done by anybody."""
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        if not child.is_alive():
            return
        time.sleep(0)
    child.kill()


# in one process


def test_a_task_is_done_once_also_after_closing():
    tasks = fiber.JoinableQueue()
    tasks.put(1)
    tasks.close()
    with pytest.raises(ValueError, match="is closed"):
        tasks.get()
    tasks.task_done()  # the stdlib asks for no get(), either
    tasks.join()
    with pytest.raises(ValueError, match=r"^task_done\(\) called too many times$"):
        tasks.task_done()


# between processes


def test_tasks_that_tasks_put_in_are_waited_for():
    tasks = fiber.JoinableQueue()
    tasks.put(6)
    workers = [start(put_more_then_finish, tasks) for _ in range(2)]

    tasks.join()

    assert tasks.empty()
    for _ in workers:
        tasks.put(None)
    finish(*workers)


# readers that end


def test_the_tasks_of_a_killed_reader_go_to_another_in_order():
    tasks, results = fiber.JoinableQueue(), fiber.SimpleQueue()
    for number in range(5):
        tasks.put(number)
    child = start(take, tasks, results, 3)
    assert results.get() == [0, 1, 2]

    child.kill()
    child.join(PATIENCE)

    assert [tasks.get(timeout=PATIENCE) for _ in range(5)] == [0, 1, 2, 3, 4]
    joined = joining(tasks)
    for _ in range(5):
        assert not joined.is_set()
        tasks.task_done()
    assert joined.wait(PATIENCE)


@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_that_fails_gives_its_tasks_back_and_one_that_ends_by_itself_does_not(code):
    tasks, results = fiber.JoinableQueue(), fiber.SimpleQueue()
    tasks.put("task")
    child = start(take_and_end, tasks, results, code)
    assert results.get() == "task"
    child.join(PATIENCE)

    if code:
        assert tasks.get(timeout=PATIENCE) == "task"
    # else as with the stdlib
    assert tasks.empty()
    joined = joining(tasks)
    assert not joined.is_set()
    tasks.task_done()
    assert joined.wait(PATIENCE)


def test_a_task_that_holds_a_queue_can_be_given_twice():
    tasks, results, go = fiber.JoinableQueue(), fiber.SimpleQueue(), fiber.SimpleQueue()
    inner = fiber.Queue()
    tasks.put(inner)
    first = start(take_a_queue, tasks, results, go)
    assert results.get() == "taken"
    assert inner.get() == "from one that died"
    first.kill()
    first.join(PATIENCE)

    second = start(put_through, tasks)

    assert inner.get(timeout=PATIENCE) == "from the other"
    tasks.join()
    second.join(PATIENCE)


@pytest.mark.timeout(3600 if soak.is_full() else 120)
def test_every_task_is_done_whichever_reader_is_killed(tmp_path):
    """Readers die at random moments; a join ends when every task was done, none of them lost."""
    here = runtime.current().info.capabilities.same_host
    for current in soak.rounds("joinable-queue-kills", 200, least=4):
        chance = random.Random(current.seed)
        path, count = tmp_path / str(current.seed), 300
        tasks = fiber.JoinableQueue()
        workers = [start(note_each, tasks, path) for _ in range(2)]
        for number in range(count):
            tasks.put(number)
        die_after(path, chance.randrange(1, count), workers[0])

        tasks.join()

        done = [int(line) for line in path.read_text().split()]
        current.note(again=len(done) - count)
        assert sorted(set(done)) == list(range(count))
        # one that was noted and not finished is all that a reader can have had; elsewhere those
        # too of which the owner was about to hear
        assert len(done) <= count + (1 if here else 2 * 256)
        workers[1].kill()
        for worker in workers:
            worker.join(PATIENCE)
