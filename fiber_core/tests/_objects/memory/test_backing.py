"""What shared memory is made of."""

import os

import attrs
import pytest

from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD


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


def test_what_has_another_size_is_not_it(memory, tmp_path):
    _, location = memory
    assert backing.find(attrs.evolve(location, size=1), lambda: tmp_path, write=False) is None


def test_nothing_is_looked_for_outside_the_folder(tmp_path):
    location = backing.Location("../secret", os.getpid(), 0, bytes(16))
    (tmp_path / "secret").write_bytes(b"")
    assert backing.find(location, lambda: tmp_path / "run", write=False) is None


def test_more_than_the_machine_has_is_refused_with_advice(tmp_path):
    with pytest.raises(OSError, match="no room for .* bytes .* in memory: .*; make it smaller"):
        backing.check_room(2**50, None)
    # of a file the system itself says so, in time
    backing.check_room(2**50, tmp_path / "file")
    error = backing.no_room_error(5, tmp_path / "file", OSError(28, "No space left on device"))
    assert (error.errno, "XDG_RUNTIME_DIR" in str(error)) == (28, True)
