"""What shared memory is made of: arenas that others map, and memory that nobody changes any more."""

import errno
import mmap
import os
import stat
from pathlib import Path

import attrs
import pytest

from fiber._objects.memory import backing, sealed
from fiber._objects.memory.backing import HEAD, Arena, map_arena


@pytest.fixture
def memory(tmp_path):
    fd, path = backing.create(lambda: tmp_path, "maker")
    os.ftruncate(fd, HEAD)
    yield fd, backing.location_of(fd, path, HEAD, bytes(16))
    backing.release(fd, path, os.getpid())


def test_it_is_found_by_its_place(memory, tmp_path):
    fd, location = memory
    os.pwrite(fd, b"abc", 0)
    found = backing.find(location, lambda: tmp_path, write=False)
    try:
        assert os.pread(found, 3, 0) == b"abc"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(found, b"x", 0)
    finally:
        os.close(found)


def test_more_than_the_machine_has_is_refused_with_advice(tmp_path):
    with pytest.raises(OSError, match="no room for .* bytes .* in memory: .*; make it smaller"):
        backing.check_room(2**50, None)
    # of a file the system itself says so, in time
    backing.check_room(2**50, tmp_path / "file")
    error = backing.no_room_error(5, tmp_path / "file", OSError(28, "No space left on device"))
    assert (error.errno, "XDG_RUNTIME_DIR" in str(error)) == (28, True)


# -- arenas


@pytest.fixture(params=["without a name", "a file"])
def folder(request, tmp_path, monkeypatch):
    """Where memory of both kinds is made."""
    if request.param == "a file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    return lambda: tmp_path


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Where memory is made that has a name, as on systems without another kind."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    return lambda: tmp_path


@pytest.fixture
def made(folder):
    """Arenas of both kinds, made by ``made(size)``."""
    arenas = []

    def make(size):
        arenas.append(Arena(size, folder, "maker"))
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


@pytest.mark.parametrize("reserves", [True, False])
def test_a_file_is_for_its_user_alone(files, tmp_path, monkeypatch, reserves):
    if not reserves:
        # pages are written where the system does not reserve them
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    mine = Arena(3 * 2**20, files, "maker")
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # all of it is there, so that no use of it can fail for lack of room
    assert path.stat().st_blocks * 512 >= mine.size
    del mine
    assert list(tmp_path.iterdir()) == []


def test_a_fork_of_the_users_leaves_the_file_to_its_maker(files, tmp_path, monkeypatch):
    mine = Arena(10, files, "maker")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    mine.close()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["an arena", "sealed", "sealed in a file"])
def test_a_lack_of_room_is_an_error_with_the_reason_and_leaves_nothing(
    tmp_path, monkeypatch, request, kind
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = (lambda: tmp_path) if kind == "sealed" else request.getfixturevalue("files")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room for .* bytes of shared memory") as e:
        Arena(10, folder, "maker") if kind == "an arena" else sealed_in(folder, b"abc")
    assert e.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


# -- memory that nobody changes any more


def sealed_in(folder, *segments):
    return sealed.seal(segments, folder, "maker")


def test_it_has_what_was_written_into_it(folder):
    one = sealed_in(folder, b"abc", bytearray(b""), memoryview(b"defg"))
    assert (one.size, bytes(one.view())) == (7, b"abcdefg")
    assert bytes(sealed_in(folder).view()) == b""


def test_others_find_it_and_others_find_it_by_them(folder):
    first = sealed_in(folder, b"abc")
    second = sealed.find(first.location, folder)
    if first.location.name.startswith(backing.DESCRIPTOR):
        first.close()
    third = sealed.find(second.location, folder)
    assert bytes(second.view()) == bytes(third.view()) == b"abc"


def test_it_cannot_be_written_to(folder):
    one = sealed_in(folder, b"abc")
    with pytest.raises(TypeError, match="cannot modify read-only memory"):
        one.view()[0] = 1
    if not one.location.name.startswith(backing.DESCRIPTOR):
        return
    fd = int(one.location.name.removeprefix(backing.DESCRIPTOR))
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, HEAD)


def test_what_is_written_to_a_private_view_is_seen_nowhere_else(folder):
    one = sealed_in(folder, bytes(2 * mmap.PAGESIZE))
    first, second = one.private(), one.private()
    first[:] = bytes([7]) * len(first)
    assert set(first) == {7}
    assert set(second) == set(one.view()) == {0}


def test_views_outlive_it(folder):
    one = sealed_in(folder, b"abc")
    views = one.view(), one.private()
    one.close()
    one.close()
    assert [bytes(view) for view in views] == [b"abc", b"abc"]
    assert sealed.find(one.location, folder) is None


def test_what_is_not_it_is_not_found(folder):
    location = sealed_in(folder, b"abc").location
    for wrong in (
        attrs.evolve(location, tag=bytes(16)),
        attrs.evolve(location, size=location.size + 1),
        attrs.evolve(location, size=0),
        attrs.evolve(location, name="fd:999999"),
        attrs.evolve(location, name="fd:0"),
    ):
        assert sealed.find(wrong, folder) is None


def test_what_others_may_still_change_is_not_it(tmp_path):
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    for seals in (os.MFD_ALLOW_SEALING, 0):
        fd = os.memfd_create("test", os.MFD_CLOEXEC | seals)
        try:
            os.pwrite(fd, bytes(HEAD), 0)
            location = backing.location_of(fd, None, HEAD, bytes(16))
            assert sealed.find(location, lambda: tmp_path) is None
        finally:
            os.close(fd)


def test_a_file_is_gone_with_its_maker(files, tmp_path):
    one = sealed_in(files, b"abc")
    assert len(list(tmp_path.iterdir())) == 1
    del one
    assert list(tmp_path.iterdir()) == []


def test_what_is_given_up_leaves_nothing(folder, tmp_path):
    descriptors = set(Path("/proc/self/fd").iterdir())
    draft = sealed.Draft(10, folder, "maker")
    draft.write(5, b"abc")
    draft.discard()
    # those of earlier tests' garbage may have been closed meanwhile
    assert set(Path("/proc/self/fd").iterdir()) <= descriptors
    assert list(tmp_path.iterdir()) == []
