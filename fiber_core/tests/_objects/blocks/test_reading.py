"""The value of a block in one process."""

import gc
import threading
import weakref

import pytest

from fiber._objects.blocks import contents
from fiber._objects.blocks.contents import ValueCache
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


def test_a_value_is_unpickled_once_for_all_handles():
    cache, before = ValueCache(Block(Thing())), Thing.made
    cells = [cache.lazy_value() for _ in range(3)]
    found = []
    threads = [threading.Thread(target=lambda c=c: found.append(c.value())) for c in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert Thing.made == before + 1
    assert len({id(one) for one in found}) == 1


def test_it_goes_with_its_last_holder():
    cache = ValueCache(Block(Thing()))
    first, second = cache.lazy_value(), cache.lazy_value()
    watched = weakref.ref(first.value())
    del first
    gc.collect()
    assert watched() is second.value()
    del second
    gc.collect()
    assert watched() is None
    assert isinstance(cache.lazy_value().value(), Thing)


def test_none_is_a_value_too():
    block = Block(None)
    lazy_value = ValueCache(block).lazy_value()
    assert lazy_value.value() is None
    block.error = EOFError()
    assert lazy_value.value() is None


def test_a_value_that_could_not_be_read_may_be_read_again():
    block = Block(5)
    lazy_value = ValueCache(block).lazy_value()
    block.error = EOFError("gone")
    with pytest.raises(EOFError, match="gone"):
        lazy_value.value()
    block.error = None
    assert lazy_value.value() == 5


def test_one_that_is_kept_goes_when_it_is_forgotten_and_with_its_last_holder():
    cache = ValueCache(Block(Thing()), keeps=True)
    watched = weakref.ref(cache.lazy_value().value())
    gc.collect()
    lazy_value = cache.lazy_value()
    assert watched() is lazy_value.value()
    cache.forget()
    gc.collect()
    assert watched() is lazy_value.value()
    del lazy_value
    gc.collect()
    assert watched() is None
