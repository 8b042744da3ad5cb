"""Without addresses to dial, the parent's streams carry everything: to it and among its jobs."""

import itertools
import sys
import time

import pytest

import fiber
from children import start
from cuttable import StreamCutter
from fiber._runtime import runtime
from fiber.exceptions import StartError
from fiber.testing.fake_remote import RemotePlatform
from pool_tasks import nap_and_tell
from waiting import until


@pytest.fixture(autouse=True)
def _nobody_dials(remote_host):
    remote_host.use(far_streams=True)


@pytest.fixture
def cutter():
    return StreamCutter(runtime.current().backend)


def slow_square(x):
    time.sleep(0.01)
    return x * x


def own_queue(sender):
    """Make a queue here and have others use it."""
    queue = fiber.Queue()
    sender.send(queue)
    total = 0
    for _ in range(2):
        while (item := queue.get(timeout=60)) is not None:
            total += item
    sys.exit(total)


def feed(queue):
    for item in (*range(5), None):
        queue.put(item)


def pass_on(incoming, outgoing):
    while (item := incoming.get(timeout=60)) is not None:
        outgoing.put(item)


def test_a_child_is_reached_by_its_parent_and_its_sibling():
    reader, writer = fiber.Pipe(duplex=False)
    owner = start(own_queue, writer)
    queue = reader.recv()
    other = start(feed, queue)
    feed(queue)
    owner.join(60)
    other.join(60)
    assert (owner.exitcode, other.exitcode) == (20, 0)


def test_a_pool_works_and_the_speed_is_logged_once_with_the_remedy(caplog):
    with fiber.Pool(2) as pool:
        assert pool.map(slow_square, range(20), 1) == [x * x for x in range(20)]
        until(lambda: "MB/s" in caplog.text)
        pool.map(slow_square, range(20), 1)
    assert caplog.text.count("MB/s") == 1
    assert "fiber run -a" in caplog.text


def test_no_address_to_dial_is_sent():
    (url,) = runtime.current().urls()
    assert url.startswith("tunnel+tls+tcp://")


class TestStreamsThatBreak:
    def test_a_map_has_its_results_and_no_worker_is_lost(self, cutter):
        with fiber.Pool(2) as pool:
            before = set()
            # one may do all of it before the other is up
            while len(before) < 2:
                before |= set(pool.map(nap_and_tell, [0.01] * 20, 1))
            with cutter:
                while cutter.cuts <= 5:
                    assert pool.map(slow_square, range(50), 1) == [x * x for x in range(50)]
            assert set(pool.map(nap_and_tell, [0.01] * 20, 1)) <= before

    def test_queues_deliver_each_item_exactly_once(self, cutter):
        there, back = fiber.Queue(), fiber.Queue()
        process = start(pass_on, there, back)
        with cutter:
            for item in itertools.takewhile(lambda _: cutter.cuts <= 5, itertools.count()):
                there.put(item)
                assert back.get(timeout=60) == item
            there.put(None)
        process.join(60)
        assert process.exitcode == 0


def test_a_job_into_which_no_stream_is_opened_says_so(monkeypatch, remote_host):
    def refuse(*_):
        raise ConnectionRefusedError

    monkeypatch.setattr(RemotePlatform, "open_stream", refuse)
    remote_host.use(far_streams=True, lease=1, time_scale=0.1)

    process = fiber.Process(target=print)
    told = r"no stream was opened into this job at 127\.0\.0\.1:\d+ within"
    process.start()
    with pytest.raises(StartError, match=told):
        process.join(60)
