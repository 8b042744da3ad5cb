"""Records of named shared memory, and the removal of what has one."""

import os
import secrets

import pytest

from fiber._agent import named_memory
from memory_blocks import is_there


@pytest.fixture
def name():
    return f"test-{secrets.token_hex(4)}"


def test_what_has_a_record_is_unlinked_with_the_run(tmp_path, name):
    os.close(named_memory.create(tmp_path, name))
    assert is_there(name)

    named_memory.unlink_all(tmp_path)

    assert not is_there(name)


def test_a_run_without_blocks_has_nothing_to_unlink(tmp_path):
    named_memory.unlink_all(tmp_path)


def test_a_block_of_somebody_else_gets_no_record(tmp_path, name):
    os.close(named_memory.open_block(name, create=True))
    with pytest.raises(FileExistsError):
        named_memory.create(tmp_path, name)

    named_memory.unlink_all(tmp_path)

    assert is_there(name)
    named_memory.unlink(name)


def test_a_second_try_of_a_name_does_not_lose_the_record_of_the_first(tmp_path, name):
    os.close(named_memory.create(tmp_path, name))
    with pytest.raises(FileExistsError):
        named_memory.create(tmp_path, name)

    named_memory.unlink_all(tmp_path)

    assert not is_there(name)


def test_a_block_that_was_unlinked_and_made_anew_by_another_stays(tmp_path, name):
    os.close(named_memory.create(tmp_path, name))
    named_memory.unlink(name)
    named_memory.forget(tmp_path, name)
    os.close(named_memory.open_block(name, create=True))

    named_memory.unlink_all(tmp_path)

    assert is_there(name)
    named_memory.unlink(name)


def test_a_record_of_what_is_gone_does_not_keep_the_others(tmp_path, name):
    os.close(named_memory.create(tmp_path, name))
    os.close(named_memory.create(tmp_path, f"{name}-2"))
    named_memory.unlink(name)

    named_memory.unlink_all(tmp_path)

    assert not is_there(f"{name}-2")
