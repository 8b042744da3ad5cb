"""Memory that nobody changes any more."""

import errno
import mmap
import os
from pathlib import Path

import attrs
import pytest

from fiber._objects.memory import backing, sealed
from fiber._objects.memory.backing import HEAD


@pytest.fixture(params=["without a name", "a file"])
def folder(request, tmp_path, monkeypatch):
    if request.param == "a file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    return lambda: tmp_path


def made(folder, *segments):
    return sealed.seal(segments, folder, "maker")


def test_it_has_what_was_written_into_it(folder):
    one = made(folder, b"abc", bytearray(b""), memoryview(b"defg"))
    assert (one.size, bytes(one.view())) == (7, b"abcdefg")
    assert bytes(made(folder).view()) == b""


def test_others_find_it_and_others_find_it_by_them(folder):
    first = made(folder, b"abc")
    second = sealed.find(first.location, folder)
    if first.location.name.startswith(backing.DESCRIPTOR):
        first.close()
    third = sealed.find(second.location, folder)
    assert bytes(second.view()) == bytes(third.view()) == b"abc"


def test_it_cannot_be_written_to(folder):
    one = made(folder, b"abc")
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
    one = made(folder, bytes(2 * mmap.PAGESIZE))
    first, second = one.private(), one.private()
    first[:] = bytes([7]) * len(first)
    assert set(first) == {7}
    assert set(second) == set(one.view()) == {0}


def test_views_outlive_it(folder):
    one = made(folder, b"abc")
    views = one.view(), one.private()
    one.close()
    one.close()
    assert [bytes(view) for view in views] == [b"abc", b"abc"]
    assert sealed.find(one.location, folder) is None


def test_what_is_not_it_is_not_found(folder):
    location = made(folder, b"abc").location
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


def test_a_file_is_gone_with_its_maker(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    one = made(lambda: tmp_path, b"abc")
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


def test_a_lack_of_room_is_an_error_with_the_reason_and_leaves_nothing(
    folder, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room for .* bytes of shared memory") as e:
        made(folder, b"abc")
    assert e.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
