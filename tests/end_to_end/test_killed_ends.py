"""A pipe's other end, or a queue's only writer, is killed at a random moment: nobody hangs."""

from __future__ import annotations

import queue
import random
import threading
import time

import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, start
from fiber.connection import wait

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.timeout(3600 if soak.is_full() else 120),
    pytest.mark.usefixtures("shared_runtime"),
]


# what is killed


def talk(end):
    """Send numbers as fast as they are taken, and read whatever comes."""

    def read():
        while True:
            end.recv()

    threading.Thread(target=read, daemon=True).start()
    number = 0
    while True:
        end.send(number)
        number += 1


def own_and_talk(end):
    """The same over a pipe that lives here."""
    here, there = fiber.Pipe()
    end.send(there)
    there.close()
    talk(here)


def fill(numbers):
    number = 0
    while True:
        numbers.put(number)
        number += 1


def own_and_fill(end, maxsize):
    """The same with a queue that lives here."""
    numbers = fiber.Queue(maxsize)
    end.send(numbers)
    fill(numbers)


# what goes on


def outcome(action):
    """How an action that goes on for ever ended."""
    try:
        while True:
            action()
    except (EOFError, BrokenPipeError) as error:
        return type(error).__mro__


def use(end):
    """Read, send, poll and wait, by a thread each, until all is over; what was read, how it ended."""
    numbers, ended = [], {}

    def read():
        numbers.append(end.recv())

    def look():
        # true at the end for ever, as of a socket
        if not end.poll(PATIENCE) or not wait([end], PATIENCE):
            raise TimeoutError
        if "read" in ended:
            raise EOFError

    def run(name, action):
        ended[name] = outcome(action)

    actions = {"read": read, "send": lambda: end.send(bytes(1000)), "look": look}
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in actions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    ways = {name: ended.get(name, ()) for name in actions}
    return (
        len(numbers),
        numbers == list(range(len(numbers))),
        EOFError in ways["read"],
        [name for name, bases in ways.items() if not bases],
    )


def use_and_tell(end, results):
    results.put(use(end))


def is_right(found):
    count, in_order, ended, hanging = found
    assert hanging == []
    assert in_order
    assert ended
    return count


@pytest.mark.parametrize("lives", ["with the survivor", "with the dead", "with a third"])
def test_the_other_end_of_a_pipe_is_killed(lives):
    for current in soak.rounds(f"killed end of a pipe {lives}", 200, least=4):
        rng = random.Random(current.seed)
        here, there = fiber.Pipe()
        if lives == "with the dead":
            dying = start(own_and_talk, there)
            end = here.recv()
        else:
            dying, end = start(talk, there), here
        there.close()
        killer = threading.Timer(rng.uniform(0, 0.3), process_signals.kill, (dying,))
        killer.start()
        if lives == "with a third":
            results = fiber.Queue()
            survivor = start(use_and_tell, end, results)
            end.close()
            found = results.get(timeout=2 * PATIENCE)
            survivor.join(PATIENCE)
        else:
            found = use(end)
        killer.join()
        dying.join(PATIENCE)
        here.close()
        end.close()
        current.note(read=is_right(found))


@pytest.mark.parametrize("maxsize", [0, 10])
def test_the_only_writer_of_a_queue_is_killed(maxsize):
    """What it had put is read, and then there is nothing; another writer goes on."""
    for current in soak.rounds(f"killed writer of a queue of {maxsize}", 200, least=4):
        rng = random.Random(current.seed)
        numbers = fiber.Queue(maxsize)
        dying = start(fill, numbers)
        # it is up once something came
        read = [numbers.get(timeout=PATIENCE)]
        killer = threading.Timer(rng.uniform(0, 0.2), process_signals.kill, (dying,))
        killer.start()
        while True:
            # asked before looking: what it sent before its death may come a moment after it
            is_dead = not dying.is_alive()
            try:
                read.append(numbers.get(timeout=0.5 if is_dead else 0.05))
            except queue.Empty:
                if is_dead:
                    break
        killer.join()
        dying.join(PATIENCE)
        assert read == list(range(len(read)))

        another = start(put_one, numbers)
        assert numbers.get(timeout=PATIENCE) == "from another"
        another.join(PATIENCE)
        numbers.close()
        current.note(read=len(read))


def put_one(numbers):
    numbers.put("from another")


@pytest.mark.parametrize("maxsize", [0, 10])
def test_the_only_writer_of_a_queue_that_lives_with_it_is_killed(maxsize):
    """Whoever waits for an item, then or later, is told that it will not come."""
    for current in soak.rounds(f"killed owner of a queue of {maxsize}", 200, least=4):
        rng = random.Random(current.seed)
        here, there = fiber.Pipe()
        dying = start(own_and_fill, there, maxsize)
        numbers = here.recv()
        counts: list[int] = []
        readers = [threading.Thread(target=read_all, args=(numbers, counts)) for _ in range(2)]
        for reader in readers:
            reader.start()
        time.sleep(rng.uniform(0, 0.2))
        process_signals.kill(dying)
        for reader in readers:
            reader.join(PATIENCE)
        dying.join(PATIENCE)
        assert len(counts) == 2, "a reader hangs"
        with pytest.raises(EOFError):
            numbers.get()
        numbers.close()
        here.close()
        there.close()
        current.note(read=sum(counts))


def read_all(numbers, counts):
    count = 0
    while True:
        try:
            numbers.get()
        except EOFError:
            counts.append(count)
            return
        count += 1
