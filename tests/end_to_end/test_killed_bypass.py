"""Two processes pass small items through a socket of the kernel, beside the queue's owner: each item is handed out once."""

import os
import queue
import signal

import pytest

import fiber
import soak
from children import PATIENCE, finish, killed_meanwhile, start
from fiber._objects.queue.bypass_socket import ReadingEnd, WritingEnd
from fiber._objects.queue.remote_channel import RemoteWriter
from waiting import until

pytestmark = [
    pytest.mark.timeout(3600 if soak.is_full() else 120),
    pytest.mark.usefixtures("shared_runtime"),
]

#: items that the reader answers together: so that some wait in the socket
BURST = 4


def write(numbers, answers, log, step=None):
    """Put numbers one by one, in bursts, and log each one that is in; until it is told to stop."""
    die_at(step)
    number, answer = 0, None
    while answer is None:
        for _ in range(BURST):
            numbers.put(number)
            log.put(number)
            number += 1
        answer = answers.get()


def read(numbers, answers, log, step=None):
    """Log each number that comes, until None does."""
    die_at(step)
    while (number := numbers.get()) is not None:
        log.put(number)
        if number % BURST == BURST - 1:
            answers.put(None)


def die_at(step):
    """Have this process be killed at a step of the 50th item that goes through a bypass."""
    if step is None:
        return
    owner, name, when = {
        "it is to be sent": (WritingEnd, "send", "before"),
        "it is sent and its copy is not": (WritingEnd, "send", "after"),
        "its copy is sent": (RemoteWriter, "put", "after"),
        "it is to be received": (ReadingEnd, "receive", "before"),
        "it is received and not noted": (ReadingEnd, "receive", "after"),
    }[step]
    real, count = getattr(owner, name), 0

    def counted(self, *given):
        nonlocal count
        used = getattr(self, "_bypass", self)
        if when == "before" and count >= 50:
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(self, *given)
        # a look at an empty socket is no item
        count += used is not None and not (name == "receive" and found is None)
        if when == "after" and count >= 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, name, counted)


class Log:
    """Numbers that a process notes, one by one; it waits where the kernel's buffer is full of those that were not read."""

    def __init__(self):
        self.queue = fiber.SimpleQueue()
        self._numbers = []

    def numbers(self):
        """All numbers up to now."""
        while not self.queue.empty():
            self._numbers.append(self.queue.get())
        return self._numbers


def until_reading(logs, is_over):
    """Wait until something is over, and read logs meanwhile."""

    def look():
        for log in logs:
            log.numbers()
        return is_over()

    until(look)


def has_opened(bypass):
    """True once items went through it: on a busy machine it may end soon."""
    return bypass.is_open or bool(bypass._ended)


class Two:
    """A writer and a reader, and what they have in common, which lives here."""

    def __init__(self, *, writer_dies=None, reader_dies=None):
        self.numbers, self.answers = fiber.Queue(), fiber.Queue()
        self.put, self.got = Log(), Log()
        self.writer = start(write, self.numbers, self.answers, self.put.queue, writer_dies)
        self.reader = start(read, self.numbers, self.answers, self.got.queue, reader_dies)

    @property
    def state(self):
        return self.numbers._object.states[0]

    def begin(self):
        """Wait for the bypass."""
        until_reading((self.put, self.got), lambda: has_opened(self.state.bypass))

    def await_end(self, process):
        """Wait until one of the two has ended."""
        until_reading((self.put, self.got), lambda: not process.is_alive())

    def await_loss(self):
        """Wait until the owner has heard of the end of one of the two."""
        until(lambda: len(self.numbers._object._references.peers(0)) == 1)

    def left(self):
        """What is in the queue, by a reader that joins."""
        found = []
        while True:
            try:
                found.append(self.numbers.get(block=False))
            except queue.Empty:
                return found

    def close(self):
        self.writer.kill()
        self.reader.kill()
        self.writer.join(PATIENCE)
        self.reader.join(PATIENCE)


@pytest.fixture
def two(request):
    made = []

    def make(**options):
        made.append(Two(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def check_after_readers_death(two):
    two.await_loss()
    # killed, it would take what it has gathered for its next message with it
    two.answers.put("stop")
    finish(two.writer)
    until(lambda: not two.numbers._object._references.peers(0))
    got, left, put = two.got.numbers(), two.left(), two.put.numbers()
    # it may have been killed between the end of `get` and its note in the log
    first = left[0] if left else len(put)
    assert got == list(range(len(got)))
    assert first in (len(got), len(got) + 1)
    assert left == list(range(first, first + len(left)))
    assert put == list(range(first + len(left)))


def check_after_writers_death(two):
    two.await_loss()
    two.numbers.put(None)
    finish(two.reader)
    got, put = two.got.numbers(), two.put.numbers()
    assert got == list(range(len(got)))
    # one was put and not logged, or only sent to the reader; others were gathered for the next message
    assert len(put) - BURST <= len(got) <= len(put) + 1


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_either_is_killed_at_any_moment(two, who):
    for current in soak.rounds(f"killed {who} of a bypass", 1000, least=4):
        both = two()
        both.begin()
        with killed_meanwhile(getattr(both, who), current.rng, latest=0.02):
            pass
        if who == "reader":
            check_after_readers_death(both)
        else:
            check_after_writers_death(both)
        both.close()


@pytest.mark.parametrize("step", ["it is to be received", "it is received and not noted"])
def test_the_reader_is_killed_when(two, step):
    both = two(reader_dies=step)
    both.await_end(both.reader)
    assert both.reader.exitcode == -signal.SIGKILL
    check_after_readers_death(both)


@pytest.mark.parametrize(
    "step", ["it is to be sent", "it is sent and its copy is not", "its copy is sent"]
)
def test_the_writer_is_killed_when(two, step):
    both = two(writer_dies=step)
    both.await_end(both.writer)
    assert both.writer.exitcode == -signal.SIGKILL
    check_after_writers_death(both)


def test_others_read_and_write_meanwhile_and_each_number_is_handed_out_once(two):
    for current in soak.rounds("joining a bypass", 200, least=2):
        both = two()
        both.begin()
        mine = []
        for number in range(-1, -20, -1):
            action = current.rng.choice(["get", "get_nowait", "put", "size"])
            if action == "get":
                mine.append(both.numbers.get())
                both.answers.put(None)
            elif action == "get_nowait":
                mine += both.left()
                both.answers.put(None)
            elif action == "put":
                both.numbers.put(number)
            else:
                both.numbers.qsize()
        both.answers.put("stop")
        finish(both.writer)
        both.await_loss()
        both.numbers.put(None)
        finish(both.reader)
        got, put = both.got.numbers(), both.put.numbers()
        seen = [number for number in got + mine if number >= 0]
        assert len(seen) == len(set(seen))
        assert set(put) == set(seen)
        both.close()


def read_and_fork(numbers, answers, log):
    """As :func:`read`, and fork behind Fiber's back now and then."""
    get = numbers.get

    def forking():
        number = get()
        if number is not None and number % 50 == 1:
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        return number

    numbers.get = forking
    read(numbers, answers, log)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_of_the_reader_ends_nothing():
    numbers, answers = fiber.Queue(), fiber.Queue()
    put, got = Log(), Log()
    writer = start(write, numbers, answers, put.queue)
    reader = start(read_and_fork, numbers, answers, got.queue)
    bypass = numbers._object.states[0].bypass
    until_reading((put, got), lambda: has_opened(bypass))
    opened_at = len(got.numbers())
    until_reading((put, got), lambda: len(got.numbers()) >= opened_at + 400)
    assert got.numbers() == list(range(len(got.numbers())))
    answers.put("stop")
    finish(writer)
    numbers.put(None)
    finish(reader)


def own(end):
    """Own the queue of two others."""
    numbers, answers = fiber.Queue(), fiber.Queue()
    end.send((numbers, answers))
    until(lambda: has_opened(numbers._object.states[0].bypass))
    end.send("open")
    signal.pause()


def test_the_owner_is_killed(two):
    """Both are told, and the reader has got an unbroken row of numbers."""
    for current in soak.rounds("killed owner of a bypass", 200, least=2):
        here, there = fiber.Pipe()
        owner = start(own, there)
        numbers, answers = here.recv()
        put, got = Log(), Log()
        writer = start(write, numbers, answers, put.queue)
        reader = start(read, numbers, answers, got.queue)
        until_reading((put, got), here.poll)
        assert here.recv() == "open"
        with killed_meanwhile(owner, current.rng, latest=0.02):
            pass
        for one in (writer, reader):
            one.join(PATIENCE)
            assert one.exitcode == 1, "it has got PeerLostError"
        got, put = got.numbers(), put.numbers()
        assert got == list(range(len(got)))
        assert len(got) <= len(put) + 1
