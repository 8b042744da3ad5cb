"""Large functions and arguments of a pool: how often their bytes are sent, and when they go."""

import gc
import os
import sys
import time
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest

import fiber
from fiber._wire.endpoint import Peer
from open_memory import open_memory
from wire_world import until

pytestmark = [
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's"),
]

WORKERS = 3
BYTES = 8_000_000
PATIENCE = 60
IS_NETWORK = os.environ.get("FIBER_LOCAL_TRANSPORT") == "tls"


@pytest.fixture
def sent(monkeypatch):
    """Bytes of bodies that this process sends, by kind."""
    found = Counter()
    send = Peer.send

    def counted(self, kind, target, number, segments=(), **options):
        found[kind.name] += sum(map(len, segments))
        send(self, kind, target, number, segments, **options)

    monkeypatch.setattr(Peer, "send", counted)
    return found


@pytest.fixture
def pool():
    with fiber.Pool(WORKERS) as made:
        busy(made, lambda _: None)
        yield made


def busy(pool, function, **options):
    """Call a function until each worker has done it; returns its results."""

    def slow(item):
        time.sleep(0.05)
        return os.getpid(), function(item)

    done = []
    while len({pid for pid, _ in done}) < WORKERS:
        done += pool.map(slow, range(2 * WORKERS), chunksize=1, **options)
    return [value for _, value in done]


@pytest.mark.parametrize("has_room", [True, False])
def test_its_bytes_are_sent_once_to_each_worker_on_other_hosts_or_where_there_is_no_room(
    pool, sent, monkeypatch, has_room
):
    if not has_room:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr(os, "pwrite", full)
    array = np.ones(BYTES // 8)
    assert set(busy(pool, lambda item: float(array.sum()))) == {BYTES / 8}
    copies = sent.total() / BYTES
    assert round(copies, 1) == (WORKERS if IS_NETWORK or not has_room else 0)


def test_what_many_tasks_share_as_a_value_goes_once_to_a_host(pool, sent):
    handle = fiber.shared(np.ones(BYTES // 8))
    assert set(busy(pool, lambda item: float(handle.value.sum()))) == {BYTES / 8}
    assert round(sent.total() / BYTES, 1) == (1 if IS_NETWORK else 0)


def test_memory_goes_with_the_pool(shared_runtime):
    gc.collect()
    before = open_memory()
    array = np.zeros(BYTES // 8)
    with fiber.Pool(1) as pool:
        pool.map(lambda item: len(array), [1])
        assert open_memory() > before
    pool.join()
    del pool
    gc.collect()
    until(lambda: open_memory() == before, timeout=PATIENCE)


def test_references_in_a_function_are_let_go_of_when_its_call_is_done(pool):
    before = open_memory()
    handles = [fiber.shared(np.ones(1000))]
    assert busy(pool, lambda item: float(handles[0].value.sum()))
    handles.clear()
    until(lambda: open_memory() == before, timeout=PATIENCE)


def marked(array, number):
    before = float(array[0])
    array[:10] = number
    return before, float(array[:10].sum()), float(array[-1])


def test_an_array_in_the_arguments_of_many_tasks_crosses_once(pool, sent):
    array = np.ones(BYTES // 8)
    tasks = [(array, number) for number in range(40)]
    assert pool.starmap(marked, tasks, chunksize=1) == [(1.0, 10.0 * n, 1.0) for _, n in tasks]
    assert array[0] == 1.0
    # the first time nobody knows that it comes again
    expected = len(tasks) if IS_NETWORK else 1
    assert sent["TASKS"] // BYTES == expected
