"""Who makes shared values and who reads them is killed at random moments: the others read on."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

import fiber
import soak
from children import Crew, be_elsewhere, start
from open_memory import open_memory
from waiting import until

pytestmark = pytest.mark.timeout(3600 if soak.is_full() else 240)

READERS = 3
SIZE = 50_000
#: descriptors of shared memory in a process that has a few values
MOST = 50


def make(inboxes):
    """Share one value after another, with as many on their way as the queues take."""
    number = 0
    while True:
        number += 1
        handle = fiber.shared((number, np.full(SIZE, number)))
        for inbox in inboxes:
            inbox.put(handle)


def read(inbox, right, wrong, lost, slot):
    """Count values that are right, that are not, and that went with their maker."""
    held = []
    while True:
        try:
            number, array = inbox.get().value
        except EOFError:
            lost[slot] += 1
            continue
        # the one before is as it was, whatever became of its maker since
        held = [*held[-1:], (number, array)]
        if all((there == expected).all() for expected, there in held):
            right[slot] += 1
        else:
            wrong[slot] += 1


def read_elsewhere(*arguments):
    """The same on what tells that it is another host, so that values are fetched."""
    be_elsewhere()
    read(*arguments)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc to look at")
def test_whoever_is_killed_the_others_read_on_and_nothing_is_left():
    inboxes = [fiber.Queue(2) for _ in range(READERS)]
    right, wrong, lost = counts = [fiber.RawArray("q", READERS) for _ in range(3)]

    def begin(slot):
        if slot == READERS:
            return start(make, inboxes)
        return start(read if slot else read_elsewhere, inboxes[slot], *counts, slot)

    def all_read():
        before = right[:]
        until(lambda: all(map(int.__lt__, before, right[:])))

    with contextlib.closing(Crew(READERS + 1, begin)) as crew:
        before = open_memory()
        for current in soak.rounds("a killed maker or reader of shared values", 200, least=8):
            all_read()
            slot = current.rng.randrange(READERS + 1)
            for _ in range(current.rng.randrange(200_000)):
                pass
            crew.kill(slot)
            crew.replace(slot)
            current.note(slot=slot, lost=sum(lost), right=sum(right))
        all_read()
        assert wrong[:] == [0] * READERS
        # values that went by are gone, those of the dead among them
        for child in crew.children:
            assert open_memory(child.pid) < MOST
    assert open_memory() == before
    # there is no need of names on Linux
    assert sorted(path.name for path in Path("/dev/shm").glob("*fiber*")) == []
