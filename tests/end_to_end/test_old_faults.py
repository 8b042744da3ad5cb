"""Faults of the project that Fiber succeeds, each seen there once, that no other test is about."""

import os
import pickle
import socket

import psutil
import pytest

import fiber
from fiber._runtime import runtime
from pool_tasks import same
from wire_world import Bomb


@pytest.fixture
def pool():
    with fiber.Pool(1) as pool:
        yield pool
    pool.join()


def test_a_strangers_pickle_is_not_run_and_nobody_waits_for_a_silent_one(pool, tmp_path):
    (url,) = runtime.current().urls()
    assert "0.0.0.0" not in url
    path = url.partition("://")[2]
    strangers = []
    for text in (b"", pickle.dumps(Bomb(str(tmp_path / "bomb"))), os.urandom(2000)):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(path)
        stranger.sendall(text)
        strangers.append(stranger)
    assert pool.map(same, range(10)) == list(range(10))
    process = fiber.Process(target=same, args=(1,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    for stranger in strangers:
        stranger.close()
    assert not (tmp_path / "bomb").exists()


def test_the_key_is_in_no_argv_environment_file_or_repr(pool):
    pool.map(same, [1])
    current = runtime.current()
    key = current.credentials.key
    needles = (key, key.hex().encode())
    me = psutil.Process()
    seen = [repr(current.credentials).encode()]
    for process in [me, *me.children(recursive=True)]:
        seen.append(" ".join(process.cmdline()).encode())
        seen.append(repr(process.environ()).encode())
    seen += [p.read_bytes() for p in current.directory.rglob("*") if p.is_file()]
    assert not [text for text in seen for needle in needles if needle in text]
