"""``SharedMemory`` and ``ShareableList`` between processes of one host."""

import secrets
from multiprocessing import shared_memory as stdlib

import pytest

import fiber
from children import finish, start
from fiber._base import values
from fiber._runtime import runtime
from fiber.exceptions import CapabilityError
from fiber.shared_memory import ShareableList, SharedMemory
from open_memory import is_there

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]


@pytest.fixture
def block():
    made = SharedMemory(create=True, size=100)
    yield made
    made.close()
    made.unlink()


def attach(name):
    SharedMemory(name).close()


def write(block, name):
    block.buf[0] = 1
    by_name = SharedMemory(name)
    by_name.buf[1] = 2
    by_name.close()


def make(connection, **options):
    made = SharedMemory(create=True, size=10, **options)
    made.buf[0] = 3
    connection.send(made.name)


def test_a_child_writes_to_a_block_that_was_passed_to_it_or_named(block):
    finish(start(write, block, block.name))

    assert bytes(block.buf[:2]) == b"\1\2"


def test_a_block_outlives_the_processes_that_were_attached_to_it_and_that_made_it():
    reader, writer = fiber.Pipe()
    finish(start(make, writer))
    name = reader.recv()

    finish(start(attach, name))

    block = SharedMemory(name)
    assert block.buf[0] == 3
    block.close()
    block.unlink()
    assert not is_there(name)


def test_blocks_and_lists_go_to_workers_of_a_pool_and_are_the_stdlibs_for_isinstance(block):
    items = ShareableList(["a", 2, None])
    assert isinstance(block, stdlib.SharedMemory)
    assert isinstance(items, stdlib.ShareableList)
    with fiber.Pool(2) as pool:
        assert pool.map(lambda one: one.name, [block]) == [block.name]
        assert pool.map(list, [items]) == [["a", 2, None]]
    items.shm.close()
    items.shm.unlink()


def test_one_that_is_not_tracked_has_no_record_with_the_run():
    block = SharedMemory(create=True, size=10, track=False)

    assert not (runtime.current().directory / "shared_memory" / block.name).exists()
    block.close()
    block.unlink()


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({}, ValueError, "by its name"),
        ({"create": True}, ValueError, "at least one byte, not 0"),
        ({"create": True, "size": -1}, ValueError, "at least one byte, not -1"),
        ({"name": "test-there-is-none"}, FileNotFoundError, "test-there-is-none"),
    ],
)
def test_what_makes_no_sense_is_an_error_at_once(arguments, error, words):
    with pytest.raises(error, match=words):
        SharedMemory(**arguments)


def test_a_name_that_is_taken_is_an_error_and_its_block_stays(block):
    with pytest.raises(FileExistsError):
        SharedMemory(block.name, create=True, size=5)

    assert is_there(block.name)


def test_a_block_that_cannot_have_its_size_is_not_left():
    name = f"test-{secrets.token_hex(4)}"
    with pytest.raises((OSError, OverflowError)):
        SharedMemory(name, create=True, size=2**62)

    assert not is_there(name)


def test_a_backend_whose_processes_share_no_host_refuses(monkeypatch, shared_runtime):
    current = runtime.current()
    apart = values.evolve(current.info.capabilities, same_host=False)
    monkeypatch.setattr(current, "_info", values.evolve(current.info, capabilities=apart))

    with pytest.raises(CapabilityError, match=r"fiber\.Array.* is not supported by local"):
        SharedMemory(create=True, size=10)
    with pytest.raises(CapabilityError):
        ShareableList([1])
