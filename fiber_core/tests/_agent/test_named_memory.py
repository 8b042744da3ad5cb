"""Records of named shared memory, and the removal of what has one."""

import os
import secrets

import pytest

from fiber._agent import rundir
from open_memory import is_there


@pytest.fixture
def name():
    return f"test-{secrets.token_hex(4)}"


def test_what_has_a_record_is_unlinked_with_the_run(tmp_path, name):
    os.close(rundir.create_block(tmp_path, name))
    assert is_there(name)

    rundir.unlink_blocks(tmp_path)

    assert not is_there(name)


def test_a_run_without_blocks_has_nothing_to_unlink(tmp_path):
    rundir.unlink_blocks(tmp_path)


@pytest.mark.parametrize("is_ours", [False, True], ids=["somebody else's", "the run's own"])
def test_a_try_of_a_taken_name_makes_no_record_and_loses_none(tmp_path, name, is_ours):
    taken = rundir.create_block(tmp_path, name) if is_ours else rundir.open_block(name, create=True)
    os.close(taken)
    with pytest.raises(FileExistsError):
        rundir.create_block(tmp_path, name)

    rundir.unlink_blocks(tmp_path)

    assert is_there(name) is not is_ours
    if not is_ours:
        rundir.unlink_block(name)


def test_a_block_that_was_unlinked_and_made_anew_by_another_stays(tmp_path, name):
    os.close(rundir.create_block(tmp_path, name))
    rundir.unlink_block(name)
    rundir.forget_block(tmp_path, name)
    os.close(rundir.open_block(name, create=True))

    rundir.unlink_blocks(tmp_path)

    assert is_there(name)
    rundir.unlink_block(name)


def test_a_record_of_what_is_gone_does_not_keep_the_others(tmp_path, name):
    os.close(rundir.create_block(tmp_path, name))
    os.close(rundir.create_block(tmp_path, f"{name}-2"))
    rundir.unlink_block(name)

    rundir.unlink_blocks(tmp_path)

    assert not is_there(f"{name}-2")
