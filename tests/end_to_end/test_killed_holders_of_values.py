"""The process that has a Value's lock is killed at a random moment: the others go on counting."""

from __future__ import annotations

import contextlib
import random
import signal
import warnings

import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, be_elsewhere
from fiber.exceptions import HolderDiedWarning
from waiting import until

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.timeout(3600 if soak.is_full() else 120),
]

ADDERS = 3


def add(value, counts, holder, slot):
    """Count, each time noted first, so that a death in between shows as one too many there."""
    warnings.simplefilter("ignore", HolderDiedWarning)
    while True:
        with value.get_lock():
            holder.value = slot + 1
            counts[slot] += 1
            value.value += 1
            holder.value = 0


def add_from_elsewhere(inbox):
    """The same on what tells that it is another host, so that memory is reached by messages."""
    be_elsewhere()
    add(*inbox.get())


class Counting:
    """Processes that count, one of which has no memory in common with the others."""

    def __init__(self):
        self.value = fiber.Value("q", 0)
        self.counts = fiber.RawArray("q", ADDERS)
        self.holder = fiber.RawValue("q", 0)
        self.inbox = fiber.SimpleQueue()
        self.children = [self.start(slot) for slot in range(ADDERS)]

    def start(self, slot):
        mine = self.value, self.counts, self.holder, slot
        if slot:
            child = fiber.Process(target=add, args=mine)
        else:
            self.inbox.put(mine)
            child = fiber.Process(target=add_from_elsewhere, args=(self.inbox,))
        child.start()
        return child

    def kill_one(self, rng):
        """Kill whoever has the lock, or has just had it; its slot."""
        found = []

        def is_held():
            found[:] = [self.holder.value]
            return found[0]

        until(is_held)
        slot = found[0] - 1
        for _ in range(rng.randrange(2000)):
            pass
        process_signals.kill(self.children[slot])
        self.children[slot].join(PATIENCE)
        assert self.children[slot].exitcode == -signal.SIGKILL
        return slot

    def others_go_on(self, slot):
        """Each of the others counts; True where this process was told of the death."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert self.value.acquire(timeout=PATIENCE)
        self.value.release()
        before = self.counts[:]
        others = [n for n in range(ADDERS) if n != slot]
        until(lambda: all(self.counts[n] > before[n] for n in others))
        return any(issubclass(one.category, HolderDiedWarning) for one in told)

    def close(self):
        for child in self.children:
            child.kill()
        for child in self.children:
            child.join(PATIENCE)


def test_a_dead_holder_of_a_values_lock_stops_nobody():
    kills = 0
    with contextlib.closing(Counting()) as counting:
        for current in soak.rounds("a killed holder of a value's lock", 200, least=8):
            rng = random.Random(current.seed)
            slot = counting.kill_one(rng)
            kills += 1
            told = counting.others_go_on(slot)
            # who dies in the middle may have noted what it did not add
            with counting.value:
                missing = sum(counting.counts) - counting.value.value
            assert 0 <= missing <= kills
            counting.children[slot] = counting.start(slot)
            current.note(slot=slot, told=told, missing=missing)
