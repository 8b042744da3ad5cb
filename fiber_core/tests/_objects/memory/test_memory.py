"""Shared memory: arenas, memory that nobody changes any more, allocations, read from elsewhere."""

import errno
import mmap
import os
import stat
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, Arena, map_arena
from fiber._objects.memory.heap import MAX_BYTES, FreeList, Heap, Memory
from making import making

# hypothesis makes up many orders of events, which takes a busy machine long
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["without a name", "a file"])
def place(request, tmp_path, monkeypatch):
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
def made(place):
    """Arenas of both kinds, made by ``made(size)``."""
    with making(lambda size: Arena(size, place, "maker"), Arena.close) as make:
        yield make


def elsewhere(location, place):
    """An arena as a process maps it that did not make it."""
    backing._mapped.pop(location.tag, None)
    return map_arena(location, lambda: place)


def test_what_one_writes_others_read_and_mappings_outlive_it(made, tmp_path):
    mine = made(1000)
    # a process maps it once
    assert map_arena(mine.location, lambda: tmp_path) is mine.memory
    theirs = elsewhere(mine.location, tmp_path)
    assert map_arena(mine.location, lambda: tmp_path) is theirs is not mine.memory

    mine.memory[HEAD : HEAD + 3] = b"abc"
    assert theirs[HEAD : HEAD + 3] == b"abc"
    mine.close()
    mine.close()
    theirs[mine.size - 1] = 7
    assert mine.memory[mine.size - 1] == 7
    assert elsewhere(mine.location, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cause", [errno.ENOSYS, errno.EPERM])
def test_pages_are_written_where_the_system_refuses_to_allocate_them(
    made, tmp_path, monkeypatch, cause
):
    def refuse(*_):
        raise OSError(cause, os.strerror(cause))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    mine = made(3 * 2**20)
    theirs = elsewhere(mine.location, tmp_path)
    theirs[mine.size - 1] = 7
    assert mine.memory[mine.size - 1] == 7


@pytest.mark.parametrize("kind", ["an arena", "sealed"])
def test_what_is_not_it_is_not_found(made, place, tmp_path, kind):
    # kept: it is gone with its last name
    one = made(10) if kind == "an arena" else sealed_in(place, b"abc")
    right = one.location
    for wrong in (
        attrs.evolve(right, tag=bytes(16)),
        *(attrs.evolve(right, size=size) for size in (0, right.size + 1, right.size * 2)),
        *(attrs.evolve(right, name=name) for name in ("fd:x", "fd:999999", "fd:0")),
        *(attrs.evolve(right, name=name) for name in ("../etc/passwd", "mmaker-999999")),
    ):
        found = (
            elsewhere(wrong, tmp_path) if kind == "an arena" else backing.find_sealed(wrong, place)
        )
        assert found is None


def test_nothing_is_looked_for_outside_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").touch()
    location = backing.Location("../secret", os.getpid(), 0, bytes(16))
    assert backing.find(location, lambda: tmp_path / "run", write=False) is None


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

    place = (lambda: tmp_path) if kind == "sealed" else request.getfixturevalue("files")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room for .* bytes of shared memory") as e:
        Arena(10, place, "maker") if kind == "an arena" else sealed_in(place, b"abc")
    assert e.value.errno == errno.ENOSPC
    assert ("XDG_RUNTIME_DIR" in str(e.value)) == (kind != "sealed")
    assert list(tmp_path.iterdir()) == []


# -- memory that nobody changes any more


def sealed_in(place, *segments):
    return backing.seal(segments, place, "maker")


def test_it_has_what_was_written_into_it(place):
    one = sealed_in(place, b"abc", bytearray(b""), memoryview(b"defg"))
    assert (one.size, bytes(one.view())) == (7, b"abcdefg")
    assert bytes(sealed_in(place).view()) == b""


def test_others_find_it_and_others_find_it_by_them(place):
    first = sealed_in(place, b"abc")
    second = backing.find_sealed(first.location, place)
    if first.location.name.startswith(backing.DESCRIPTOR):
        first.close()
    third = backing.find_sealed(second.location, place)
    assert bytes(second.view()) == bytes(third.view()) == b"abc"


def test_it_cannot_be_written_to(place):
    one = sealed_in(place, b"abc")
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


def test_what_is_written_to_a_private_view_is_seen_nowhere_else(place):
    one = sealed_in(place, bytes(2 * mmap.PAGESIZE))
    first, second = one.private(), one.private()
    first[:] = bytes([7]) * len(first)
    assert set(first) == {7}
    assert set(second) == set(one.view()) == {0}


def test_views_outlive_it(place):
    one = sealed_in(place, b"abc")
    views = one.view(), one.private()
    one.close()
    one.close()
    assert [bytes(view) for view in views] == [b"abc", b"abc"]
    assert backing.find_sealed(one.location, place) is None


def test_what_others_may_still_change_is_not_it(tmp_path):
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    for seals in (os.MFD_ALLOW_SEALING, 0):
        fd = os.memfd_create("test", os.MFD_CLOEXEC | seals)
        try:
            os.pwrite(fd, bytes(HEAD), 0)
            location = backing.location_of(fd, None, HEAD, bytes(16))
            assert backing.find_sealed(location, lambda: tmp_path) is None
        finally:
            os.close(fd)


def test_a_file_is_gone_with_its_maker(files, tmp_path):
    one = sealed_in(files, b"abc")
    assert len(list(tmp_path.iterdir())) == 1
    del one
    assert list(tmp_path.iterdir()) == []


def test_what_is_given_up_leaves_nothing(place, tmp_path):
    descriptors = set(Path("/proc/self/fd").iterdir())
    draft = backing.Draft(10, place, "maker")
    draft.write(5, b"abc")
    draft.discard()
    # those of earlier tests' garbage may have been closed meanwhile
    assert set(Path("/proc/self/fd").iterdir()) <= descriptors
    assert list(tmp_path.iterdir()) == []


# -- allocations: side by side in arenas, large ones by themselves


@pytest.fixture
def heap(tmp_path):
    return Heap(lambda: tmp_path, "maker")


def test_small_allocations_are_side_by_side_and_do_not_touch(heap):
    allocations = [heap.allocate(size) for size in (1, 64, 65, 0, 8)]
    assert len({allocation.arena for allocation in allocations}) == 1
    for number, allocation in enumerate(allocations, 1):
        allocation.view[:] = bytes([number]) * allocation.size
    assert [bytes(allocation.view) for allocation in allocations] == [
        bytes([number]) * allocation.size for number, allocation in enumerate(allocations, 1)
    ]
    assert all(allocation.begin % 64 == 0 for allocation in allocations)


def test_an_allocation_is_all_zeros_whatever_was_there_before(heap):
    first = heap.allocate(100)
    first.view[:] = b"x" * 100
    heap.free(first)
    again = heap.allocate(100)
    assert again.begin == first.begin
    assert bytes(again.view) == bytes(100)


def test_a_large_allocation_has_an_arena_that_is_closed_when_it_is_freed(heap):
    large = heap.allocate(10**6)
    assert heap.allocate(10).arena is not large.arena
    heap.free(large)
    assert not large.arena._closing.alive


def test_arenas_go_with_their_last_allocation_but_one_is_kept(heap):
    allocations = [heap.allocate(2**15) for _ in range(20)]
    arenas = {allocation.arena for allocation in allocations}
    assert len(arenas) == 3
    for allocation in allocations:
        heap.free(allocation)
    assert sum(one._closing.alive for one in arenas) == 1


class Parts(RuleBasedStateMachine):
    """Against a byte map."""

    def __init__(self):
        super().__init__()
        self.free_list = FreeList(64, begin=4)
        self.used = bytearray(b"\1" * 4 + b"\0" * 60)
        self.parts = []

    @rule(size=st.integers(1, 20))
    def allocate(self, size):
        begin = self.free_list.allocate(size)
        assert (begin is None) == (bytes(size) not in bytes(self.used))
        if begin is not None:
            assert not any(self.used[begin : begin + size])
            self.used[begin : begin + size] = b"\1" * size
            self.parts.append((begin, size))

    @rule(data=st.data())
    def free(self, data):
        if self.parts:
            index = data.draw(st.integers(0, len(self.parts) - 1))
            begin, size = self.parts.pop(index)
            self.used[begin : begin + size] = bytes(size)
            self.free_list.free(begin, size)

    @invariant()
    def is_whole_where_all_came_back(self):
        assert self.free_list.is_whole == (not self.parts)


TestParts = Parts.TestCase
TestParts.settings = settings(max_examples=50, stateful_step_count=30)


# -- read and written from another host


def test_much_goes_in_parts(owner, other):
    size = 10 * MAX_BYTES + 5
    mine = owner.make(Memory, size)
    theirs = other.remote(mine)
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
    theirs.write([(0, data)])
    assert bytes(mine.view) == data
    assert theirs.read(0, size) == data


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=24)), max_size=12))
def test_parts_are_written_in_order_and_read_by_everybody(owner, other, third, parts):
    mine = owner.make(Memory, 64)
    theirs = other.remote(mine)
    expected = bytearray(64)
    for begin, data in parts:
        expected[begin : begin + len(data)] = data
    theirs.write(parts)
    assert theirs.read(0, 64) == third.remote(mine).read(0, 64) == expected
    assert theirs.read(9, 0) == b""
    assert bytes(mine.view) == expected
