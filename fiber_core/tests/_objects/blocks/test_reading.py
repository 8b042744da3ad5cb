"""The value of a block in one process."""

import gc
import threading
import weakref

import pytest

from fiber._objects.blocks import contents
from fiber._objects.blocks.contents import Reading
from fiber._wire import frames


class Thing:
    made = 0

    def __reduce__(self):
        return _thing, ()


def _thing():
    Thing.made += 1
    return Thing()


class Block:
    def __init__(self, value):
        self._body = memoryview(frames.joined(contents.write(value)))
        self.error = None

    def body(self):
        if self.error is not None:
            raise self.error
        return self._body


def test_a_value_is_unpickled_once_for_all_who_hold_it():
    reading, before = Reading(Block(Thing())), Thing.made
    cells = [reading.cell() for _ in range(3)]
    found = []
    threads = [threading.Thread(target=lambda c=c: found.append(c.value())) for c in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert Thing.made == before + 1
    assert len({id(one) for one in found}) == 1


def test_it_goes_with_its_last_holder():
    reading = Reading(Block(Thing()))
    first, second = reading.cell(), reading.cell()
    watched = weakref.ref(first.value())
    del first
    gc.collect()
    assert watched() is second.value()
    del second
    gc.collect()
    assert watched() is None
    assert isinstance(reading.cell().value(), Thing)


def test_none_is_a_value_too():
    block = Block(None)
    cell = Reading(block).cell()
    assert cell.value() is None
    block.error = EOFError()
    assert cell.value() is None


def test_who_could_not_read_it_may_try_again():
    block = Block(5)
    cell = Reading(block).cell()
    block.error = EOFError("gone")
    with pytest.raises(EOFError, match="gone"):
        cell.value()
    block.error = None
    assert cell.value() == 5


def test_one_that_is_kept_goes_when_it_is_forgotten_and_with_its_last_holder():
    reading = Reading(Block(Thing()), keeps=True)
    watched = weakref.ref(reading.cell().value())
    gc.collect()
    cell = reading.cell()
    assert watched() is cell.value()
    reading.forget()
    gc.collect()
    assert watched() is cell.value()
    del cell
    gc.collect()
    assert watched() is None
