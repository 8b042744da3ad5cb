"""``SharedMemoryManager``: blocks that go with their manager."""

import pytest

from children import finish, start
from fiber.managers import SharedMemoryManager
from open_memory import is_there

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]


def double(items):
    for index, item in enumerate(items):
        items[index] = 2 * item


def test_blocks_and_lists_of_a_manager_are_unlinked_when_it_is_shut_down():
    with SharedMemoryManager() as manager:
        block = manager.SharedMemory(size=100)
        items = manager.ShareableList([1, 2, 3])
        finish(start(double, items))
        assert list(items) == [2, 4, 6]
        names = [block.name, items.shm.name]
        assert all(map(is_there, names))

    assert not any(map(is_there, names))
    block.close()
    items.shm.close()


def test_a_block_that_the_user_unlinked_does_not_keep_the_others():
    with SharedMemoryManager() as manager:
        first, second = manager.SharedMemory(size=10), manager.SharedMemory(size=10)
        first.close()
        first.unlink()
        second.close()

    assert not is_there(second.name)


def test_a_manager_that_was_not_started_makes_no_block():
    with pytest.raises(AssertionError, match="server not yet started"):
        SharedMemoryManager().SharedMemory(10)
