"""Queues between processes as users see them, and those of tasks: what is unfinished, who waits."""

import collections
import itertools
import os
import resource
import signal
import sys
import threading
import time

import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, finish, start
from fiber._objects import store
from fiber._runtime import runtime
from fiber.exceptions import PeerLostError
from waiting import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


def echo(inbox, outbox):
    while (value := inbox.get()) is not None:
        outbox.put(value)


def put_range(into, name, count):
    for number in range(count):
        into.put((name, number))


def get_in(source, results):
    results.put("ready")
    try:
        results.put(source.get())
    except EOFError as error:
        results.put(str(error))


def make_queue(results, go):
    made = fiber.JoinableQueue()
    made.put("from the child")
    results.put(made)
    go.get()


def filling(number, size):
    return bytes([number % 251]) * size


def record(source, path, size):
    """Note each item the moment it is handed out, so that a kill cannot hide it."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        number, content = source.get()
        os.write(fd, b"%d\n" % (number if content == filling(number, size) else -1))


def echo_with_few_descriptors(inbox, outbox):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    echo(inbox, outbox)


class CountingQueue(fiber.queues.Queue):
    """The usual way to have ``qsize()`` everywhere, with the names that the stdlib's class has."""

    def __init__(self, *arguments):
        super().__init__(*arguments, ctx=fiber.get_context())
        self._count = fiber.Value("i", 0)

    def put(self, *arguments):
        super().put(*arguments)
        with self._count.get_lock():
            self._count.value += 1


class NamedEvent(fiber.synchronize.Event):
    """Says what else is sent with it."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def __getstate__(self):
        return {"event": super().__getstate__(), "sent": f"{self.name} was sent"}

    def __setstate__(self, state):
        super().__setstate__(state["event"])
        self.sent = state["sent"]


def put_if_set(event, into):
    assert event.wait(PATIENCE)
    into.put((event.name, event.sent))


class StuckError(Exception):
    """A put waits."""


def put_until_it_waits(into):
    """Put numbers until a put waits, and be interrupted there; how many there are."""
    count = seen = 0

    def look(*_):
        nonlocal seen
        if seen == count:
            raise StuckError
        seen = count

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
    try:
        while True:
            into.put(count)
            count += 1
    except StuckError:
        return count
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fill_and_tell(into, results):
    results.send(put_until_it_waits(into))
    # what waited was not put, and what is in it stays when this process is gone
    os.kill(os.getpid(), signal.SIGKILL)


def test_first_in_first_out_as_it_was_when_it_was_put():
    one, value = fiber.Queue(), [1, 2]
    for item in (value, None, "three"):
        one.put(item)
    value.append(3)
    with pytest.raises(TypeError, match="pickle"):
        one.put(threading.Lock())

    assert [one.get(), one.get(), one.get()] == [[1, 2], None, "three"]
    assert one.empty()


def test_values_of_any_size_make_the_way_there_and_back():
    with fiber.SimpleQueue() as inbox, fiber.SimpleQueue() as outbox:
        child = start(echo, inbox, outbox)
        for size in (0, 2**20 - 1, 2**20 + 1, 5 * 2**20, 64 * 2**20):
            value = os.urandom(1024) * (size // 1024) + bytes(size % 1024)
            inbox.put(value)
            assert outbox.get() == value
        inbox.put(None)
        finish(child)


def test_what_a_process_put_last_arrives_although_it_ends_at_once():
    one = fiber.Queue()
    finish(start(lambda: [one.put(bytes(2**20)) for _ in range(20)]))

    assert [len(one.get(timeout=PATIENCE)) for _ in range(20)] == [2**20] * 20


def test_a_process_may_end_without_waiting_for_what_it_put():
    one = fiber.Queue()
    finish(start(lambda: (one.put(1), one.cancel_join_thread(), one.close())))


def test_a_process_with_few_descriptors_gets_and_puts_large_items():
    inbox, outbox = fiber.Queue(), fiber.Queue()
    child = start(echo_with_few_descriptors, inbox, outbox)
    for begin in (0, 40, 80):
        numbers = range(begin, begin + 40)
        for number in numbers:
            inbox.put((number, filling(number, 600_000)))
        for number in numbers:
            assert outbox.get(timeout=PATIENCE) == (number, filling(number, 600_000))
    inbox.put(None)
    finish(child)


@pytest.mark.one_host("its kernel keeps what was put")
def test_a_full_simple_queue_keeps_who_puts_waiting_interruptibly_and_outlives_its_maker():
    if not store.current().has_descriptors:
        pytest.skip("a process has what was put, without a limit")
    one, (here, there) = fiber.SimpleQueue(), fiber.Pipe()
    child = start(fill_and_tell, one, there)
    count = here.recv()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    assert count > 100
    assert [one.get() for _ in range(count)] == list(range(count))
    assert one.empty()


@pytest.mark.timeout(3600 if soak.is_full() else 600)
@pytest.mark.parametrize("count,size", [(6000, 0), (80, 600_000)])
def test_killed_readers_lose_and_double_nothing(tmp_path, count, size):
    for current in soak.rounds(f"killed readers of a queue, {size} bytes", 50, least=2):
        one, readers = fiber.Queue(), 3
        folder = tmp_path / str(current.seed)
        folder.mkdir()
        names = itertools.count()
        running = [start(record, one, folder / str(next(names)), size) for _ in range(readers)]
        for number in range(count):
            one.put((number, filling(number, size)))
            if number % (count // 4) == count // 4 - 1:
                victim = running.pop(0)
                process_signals.kill(victim)
                victim.join(PATIENCE)
                running.append(start(record, one, folder / str(next(names)), size))
        until(one.empty)
        for child in running:
            process_signals.kill(child)
            child.join(PATIENCE)
        got = collections.Counter(
            int(line) for path in folder.iterdir() for line in path.read_text().split()
        )
        left = 0
        while not one.empty():
            got[one.get(timeout=PATIENCE)[0]] += 1
            left += 1
        lost = set(range(count)) - set(got)
        current.note(lost=len(lost), left=left)

        assert set(got) <= set(range(count)), "an item came with the bytes of another"
        assert [item for item, times in got.items() if times > 1] == []
        # one that was handed out and not noted yet when its reader was killed
        assert len(lost) <= 4 + readers


def test_a_queue_travels_through_a_queue_and_in_a_pools_initializer_and_arguments():
    outer, results = fiber.Queue(), fiber.Queue()
    child = start(lambda: outer.get().put("through the outer one"))
    outer.put(results)
    assert results.get(timeout=PATIENCE) == "through the outer one"
    finish(child)
    with fiber.Pool(2, initializer=put_range, initargs=(results, "up", 1)) as pool:
        pool.starmap(lambda into, number: into.put(number), [(results, n) for n in range(10)])
        got = [results.get(timeout=PATIENCE) for _ in range(12)]

    assert collections.Counter(got) == {("up", 0): 2, **dict.fromkeys(range(10), 1)}


def test_what_a_subclass_of_a_users_has_besides_goes_with_it():
    counting, event = CountingQueue(5), NamedEvent("go")
    event.set()
    with fiber.Pool(1) as pool:
        finish(start(put_if_set, event, counting))
        pool.apply(put_if_set, (event, counting))

    assert (counting.get(), counting._count.value) == (("go", "go was sent"), 2)


def test_a_queue_made_by_a_child_works_in_its_parent_and_ends_with_it():
    results, go = fiber.Queue(), fiber.Queue()
    child = start(make_queue, results, go)
    made = results.get(timeout=PATIENCE)
    assert made.get(timeout=PATIENCE) == "from the child"
    reader = start(get_in, made, results)
    assert results.get(timeout=PATIENCE) == "ready"
    pid = child.pid
    process_signals.kill(child)

    # those that wait hear of it too
    assert f": {pid} on " in results.get(timeout=PATIENCE)
    for use in (made.get, made.join, made.task_done):
        with pytest.raises(PeerLostError, match="the process that this queue lives in is gone"):
            use()
    finish(reader)


# -- simple queues: what was put is with the queue when ``put`` returns


def put_and_die(into, *values):
    for value in values:
        into.put(value)
    os.kill(os.getpid(), signal.SIGKILL)


def put_from_threads_and_die(into, *values):
    threads = [threading.Thread(target=into.put, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(3600 if soak.is_full() else 120)
@pytest.mark.parametrize("put", [put_and_die, put_from_threads_and_die])
def test_what_was_put_survives_its_writer(put):
    for current in soak.rounds(put.__name__, 200):
        results = fiber.SimpleQueue()
        count = current.seed % 4 + 1
        child = start(put, results, *range(count))
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL

        assert sorted(results.get() for _ in range(count)) == list(range(count))
        assert results.empty()


def test_a_large_value_survives_its_writer():
    results = fiber.SimpleQueue()
    start(put_and_die, results, b"x" * 20_000_000).join(PATIENCE)

    assert len(results.get()) == 20_000_000


def take_and_end(tasks, results, code):
    results.put(tasks.get())
    sys.exit(code)


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
    joined = threading.Event()
    threading.Thread(target=lambda: (tasks.join(), joined.set()), daemon=True).start()
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
    for current in soak.rounds("joinable-queue-kills", 200):
        chance = current.rng
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
