"""A stretch of memory that others map."""

import errno
import os
import stat

import attrs
import pytest

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, Arena, map_arena


@pytest.fixture(params=["without a name", "a file"])
def made(request, tmp_path, monkeypatch):
    """Arenas of both kinds, made by ``made(size)``."""
    if request.param == "a file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    arenas = []

    def make(size):
        arenas.append(Arena(size, lambda: tmp_path, "maker"))
        return arenas[-1]

    yield make
    for one in arenas:
        one.close()


def elsewhere(location, folder):
    """An arena as a process maps it that did not make it."""
    backing._mapped.pop(location.tag, None)
    return map_arena(location, lambda: folder)


def test_what_one_writes_others_read(made, tmp_path):
    mine = made(1000)
    theirs = elsewhere(mine.location, tmp_path)
    assert theirs is not mine.memory

    mine.memory[HEAD : HEAD + 3] = b"abc"
    assert theirs[HEAD : HEAD + 3] == b"abc"
    theirs[mine.size - 1] = 7
    assert mine.memory[mine.size - 1] == 7


def test_a_process_maps_it_once(made, tmp_path):
    mine = made(10)
    assert map_arena(mine.location, lambda: tmp_path) is mine.memory
    theirs = elsewhere(mine.location, tmp_path)
    assert map_arena(mine.location, lambda: tmp_path) is theirs


def test_a_closed_one_cannot_be_mapped_but_mappings_stay(made, tmp_path):
    mine = made(10)
    theirs = elsewhere(mine.location, tmp_path)
    mine.close()
    mine.close()
    assert elsewhere(mine.location, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    mine.memory[HEAD] = 1
    assert theirs[HEAD] == 1


def test_what_is_not_it_is_not_mapped(made, tmp_path):
    location = made(10).location
    for wrong in (
        attrs.evolve(location, tag=bytes(16)),
        attrs.evolve(location, size=location.size * 2),
        attrs.evolve(location, name="fd:x"),
        attrs.evolve(location, name="../etc/passwd"),
        attrs.evolve(location, name="mmaker-999999"),
        attrs.evolve(location, name="fd:999999"),
        attrs.evolve(location, name="fd:0", pid=os.getpid()),
    ):
        assert elsewhere(wrong, tmp_path) is None


def test_a_file_is_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    mine = Arena(10, lambda: tmp_path, "maker")
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # all of it is there, so that no use of it can fail for lack of room
    assert path.stat().st_blocks * 512 >= mine.size
    del mine
    assert list(tmp_path.iterdir()) == []


def test_a_fork_of_the_users_leaves_the_file_to_its_maker(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    mine = Arena(10, lambda: tmp_path, "maker")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    mine.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_an_error_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=f"no room for .* bytes of shared memory in {tmp_path}") as e:
        Arena(10, lambda: tmp_path, "maker")
    assert e.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_machine_has_is_an_error_with_the_reason(tmp_path):
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    with pytest.raises(OSError, match=r"no room for .* bytes of shared memory in memory"):
        Arena(2**50, lambda: tmp_path, "maker")


def test_where_pages_cannot_be_asked_for_they_are_written(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    mine = Arena(3 * 2**20, lambda: tmp_path, "maker")
    (path,) = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 >= mine.size
    mine.close()
