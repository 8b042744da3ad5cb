"""A pipe's other end, or a queue's only writer, is killed at a random moment: nobody hangs."""

import queue
import threading

import pytest

import fiber
import soak
from children import PATIENCE, finish, killed_meanwhile, start
from fiber.connection import wait

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.timeout(3600 if soak.is_full() else 120),
    pytest.mark.usefixtures("shared_runtime"),
]


def talk(end, size):
    """Send numbers and so many bytes as fast as they are taken, and read whatever comes."""

    def read():
        while True:
            end.recv()

    threading.Thread(target=read, daemon=True).start()
    number = 0
    while True:
        end.send((number, bytes(size)))
        number += 1


def own_and_talk(end, size):
    """The same over a pipe that lives here."""
    here, there = fiber.Pipe()
    end.send(there)
    there.close()
    talk(here, size)


def fill(numbers, size=0):
    number = 0
    while True:
        numbers.put((number, bytes(size)))
        number += 1


def own_and_fill(end, maxsize):
    """The same with a queue that lives here."""
    numbers = fiber.Queue(maxsize)
    end.send(numbers)
    fill(numbers)


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
        number, _ = end.recv()
        numbers.append(number)

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
    hanging = [name for name in actions if name not in ended]
    return numbers, EOFError in ended.get("read", ()), hanging


def use_and_tell(end, results):
    results.put(use(end))


# large messages are in memory whose descriptors are on their way when either side dies
@pytest.mark.parametrize(
    "lives,size",
    [
        ("with the survivor", 0),
        ("with the dead", 0),
        ("with a third", 0),
        ("with the survivor", 200_000),
        ("with a third", 200_000),
    ],
)
def test_the_other_end_of_a_pipe_is_killed(lives, size):
    for current in soak.rounds(f"killed end of a pipe {lives}, {size} bytes", 200):
        here, there = fiber.Pipe()
        if lives == "with the dead":
            dying = start(own_and_talk, there, size)
            end = here.recv()
        else:
            dying, end = start(talk, there, size), here
        there.close()
        with killed_meanwhile(dying, current.rng, latest=0.3):
            if lives == "with a third":
                results = fiber.Queue()
                survivor = start(use_and_tell, end, results)
                end.close()
                numbers, ended, hanging = results.get(timeout=2 * PATIENCE)
                finish(survivor)
            else:
                numbers, ended, hanging = use(end)
        here.close()
        end.close()
        assert (hanging, ended) == ([], True)
        assert numbers == list(range(len(numbers)))
        current.note(read=len(numbers))


@pytest.mark.parametrize("maxsize,size", [(0, 0), (10, 0), (10, 600_000)])
def test_the_only_writer_of_a_queue_is_killed(maxsize, size):
    """What it had put is read, and then there is nothing; another writer goes on."""
    for current in soak.rounds(f"killed writer of a queue of {maxsize}, {size}", 200):
        numbers = fiber.Queue(maxsize)
        dying = start(fill, numbers, size)
        # it is up once something came
        read = [numbers.get(timeout=PATIENCE)[0]]
        with killed_meanwhile(dying, current.rng, latest=0.2):
            while True:
                # asked before looking: what it sent before its death may come a moment after it
                is_dead = not dying.is_alive()
                try:
                    number, filling = numbers.get(timeout=0.5 if is_dead else 0.05)
                    assert len(filling) == size
                    read.append(number)
                except queue.Empty:
                    if is_dead:
                        break
        assert read == list(range(len(read)))

        another = start(put_one, numbers)
        assert numbers.get(timeout=PATIENCE) == "from another"
        finish(another)
        numbers.close()
        current.note(read=len(read))


def put_one(numbers):
    numbers.put("from another")


@pytest.mark.parametrize("maxsize", [0, 10])
def test_the_only_writer_of_a_queue_that_lives_with_it_is_killed(maxsize):
    """Whoever waits for an item, then or later, is told that it will not come."""
    for current in soak.rounds(f"killed owner of a queue of {maxsize}", 200):
        here, there = fiber.Pipe()
        dying = start(own_and_fill, there, maxsize)
        numbers, ended = here.recv(), []
        readers = [threading.Thread(target=read_all, args=(numbers, ended)) for _ in range(2)]
        for reader in readers:
            reader.start()
        with killed_meanwhile(dying, current.rng, latest=0.2):
            for reader in readers:
                reader.join(PATIENCE)
        assert [EOFError in how for how in ended] == [True, True], "a reader hangs"
        with pytest.raises(EOFError):
            numbers.get()
        for end in (numbers, here, there):
            end.close()


def read_all(numbers, ended):
    ended.append(outcome(numbers.get))
