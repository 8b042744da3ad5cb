"""Who makes shared values and who reads them is killed at random moments: the others read on."""

import contextlib
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, be_elsewhere
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


class Sharing:
    """A maker and readers, one of which maps nothing of the maker's."""

    def __init__(self):
        self.inboxes = [fiber.Queue(2) for _ in range(READERS)]
        self.right, self.wrong, self.lost = (fiber.RawArray("q", READERS) for _ in range(3))
        self.readers = [self.reader(slot) for slot in range(READERS)]
        self.maker = self.new_maker()

    def new_maker(self):
        child = fiber.Process(target=make, args=(self.inboxes,))
        child.start()
        return child

    def reader(self, slot):
        target = read if slot else read_elsewhere
        arguments = self.inboxes[slot], self.right, self.wrong, self.lost, slot
        child = fiber.Process(target=target, args=arguments)
        child.start()
        return child

    def all_read(self):
        """Wait until each reader has read one more."""
        before = self.right[:]
        until(lambda: all(map(int.__lt__, before, self.right[:])))

    def kill(self, rng):
        """Kill one of them in the midst of it and start another; who it was."""
        slot = rng.randrange(-1, READERS)
        victim = self.maker if slot < 0 else self.readers[slot]
        for _ in range(rng.randrange(200_000)):
            pass
        process_signals.kill(victim)
        victim.join(PATIENCE)
        assert victim.exitcode == -signal.SIGKILL
        if slot < 0:
            self.maker = self.new_maker()
        else:
            self.readers[slot] = self.reader(slot)
        return slot

    def close(self):
        for child in (self.maker, *self.readers):
            child.kill()
        for child in (self.maker, *self.readers):
            child.join(PATIENCE)


def open_memory(pid):
    """How much memory without a name a process has open."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "memfd:fiber-memory" in str(path.readlink())
    return found


def named_memory():
    """What of ours has a name, for which there is no need on Linux."""
    return sorted(path.name for path in Path("/dev/shm").glob("*fiber*"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc to look at")
def test_whoever_is_killed_the_others_read_on_and_nothing_is_left():
    with contextlib.closing(Sharing()) as sharing:
        before = open_memory(os.getpid())
        for current in soak.rounds("a killed maker or reader of shared values", 200, least=8):
            sharing.all_read()
            slot = sharing.kill(random.Random(current.seed))
            current.note(slot=slot, lost=sum(sharing.lost), right=sum(sharing.right))
        sharing.all_read()
        assert sharing.wrong[:] == [0] * READERS
        # values that went by are gone, those of the dead among them
        for child in (sharing.maker, *sharing.readers):
            assert open_memory(child.pid) < MOST
    assert open_memory(os.getpid()) == before
    assert named_memory() == []
