"""Pipes in one process and between several, and waiting for several things at once."""

import contextlib
import gc
import os
import pickle
import resource
import signal
import socket
import threading
from multiprocessing import connection as stdlib
from pathlib import Path

import pytest

import fiber
import soak
from children import PATIENCE, finish, start
from fiber._launch.launcher import Launcher
from fiber._objects import store
from fiber._wire.endpoint import Peer
from fiber.connection import _owned_pipe, wait
from waiting import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


@pytest.fixture
def ends():
    first, second = fiber.Pipe()
    with first, second:
        yield first, second


def echo(end):
    with contextlib.suppress(EOFError):
        while True:
            end.send(end.recv())


def test_the_end_comes_after_the_last_message_of_an_end_that_is_forgotten():
    first, second = fiber.Pipe()
    first.send(1)
    del first
    gc.collect()

    assert second.poll()
    assert second.recv() == 1
    assert second.poll(PATIENCE)
    with pytest.raises(EOFError):
        second.recv()
    with pytest.raises(BrokenPipeError):
        second.send(1)


def echo_once(inbox, outbox):
    outbox.put(inbox.get())


def test_wait_for_connections_sentinels_sockets_and_the_stdlibs_pipes_at_once(ends):
    here, there = ends
    one, other = socket.socketpair()
    theirs, mine = stdlib.Pipe()
    child = start(echo, there)
    there.close()
    with one, other, theirs, mine:
        everything = [here, one, mine, child.sentinel]
        assert wait(everything, 0) == []
        for send, ready, take in (
            (lambda: other.send(b"x"), one, lambda: one.recv(1)),
            (lambda: theirs.send(1), mine, mine.recv),
            (lambda: here.send("back"), here, here.recv),
        ):
            send()
            assert wait(everything, PATIENCE) == [ready]
            take()
        here.close()
        assert wait(everything[1:], PATIENCE) == [child.sentinel]
    finish(child)


def test_the_stdlibs_wait_returns_where_there_is_something_and_at_an_end(ends):
    here, there = ends
    there.send(1)
    assert stdlib.wait([here], PATIENCE) == [here]
    assert here.recv() == 1
    there.close()

    assert stdlib.wait([here], PATIENCE) == [here]
    with pytest.raises(EOFError):
        here.recv()


@pytest.mark.parametrize("make", [fiber.Queue, fiber.SimpleQueue])
def test_the_stdlibs_wait_takes_a_queue_as_programs_give_it(make):
    here, back = make(), make()
    child = start(echo_once, here, back)
    assert stdlib.wait([back._reader], 0) == []
    here.put("there")
    assert stdlib.wait([back._reader], PATIENCE) == [back._reader]
    assert back.get() == "there"
    assert stdlib.wait([back._reader], 0) == []
    finish(child)


def read_some(end, results):
    with contextlib.suppress(EOFError):
        while True:
            results.put(end.recv())


@pytest.mark.parametrize("size", [10, 2**20 + 1, 20 * 2**20])
def test_messages_of_any_size_make_the_way_there_and_back(ends, size):
    here, there = ends
    child = start(echo, there)
    there.close()
    value = os.urandom(1000) * (size // 1000 + 1)
    here.send(value)
    assert here.recv() == value
    here.send_bytes(pickle.dumps(value))
    assert pickle.loads(here.recv_bytes()) == value
    here.close()
    finish(child)


def test_a_child_that_died_before_it_loaded_the_end_ends_the_pipe(ends):
    here, there = ends
    child = start(len, there)
    there.close()

    with pytest.raises(EOFError):
        here.recv()
    child.join(PATIENCE)
    assert child.exitcode == 1


def test_many_readers_of_one_end_get_each_message_once(ends):
    here, there = ends
    results = fiber.Queue()
    readers = [start(read_some, there, results) for _ in range(2)]
    readers += [start(wait_and_read, there, results) for _ in range(2)]
    there.close()
    for number in range(300):
        here.send(number)
    assert sorted(results.get(timeout=PATIENCE) for _ in range(300)) == list(range(300))
    here.close()
    finish(*readers)


def test_an_end_travels_through_queues_and_in_the_arguments_of_a_pools_tasks(ends):
    here, there = ends
    outer = fiber.Queue()
    child = start(lambda: outer.get().send("through a queue"))
    outer.put(there)
    assert here.recv() == "through a queue"
    finish(child)
    with fiber.Pool(2) as pool:
        pool.starmap(
            lambda number, end: end.send(number), [(number, there) for number in range(10)]
        )
        there.close()
        assert sorted(here.recv() for _ in range(10)) == list(range(10))
    with pytest.raises(EOFError):
        here.recv()


def test_an_end_travels_through_a_pipe_alone_and_with_much_else(ends):
    here, there = ends
    for much in (b"", bytes(200_000)):
        mine, its = fiber.Pipe()
        child = start(answer_there, there)
        here.send((its, much))
        its.close()
        assert mine.recv() == len(much)
        finish(child)
        with pytest.raises(EOFError):
            mine.recv()


def answer_there(end):
    inner, much = end.recv()
    inner.send(len(much))


def echo_with_few_descriptors(end):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    echo(end)


def test_a_process_with_few_descriptors_takes_and_sends_large_items_and_ends(ends):
    here, there = ends
    child = start(echo_with_few_descriptors, there)
    there.close()
    for number in range(200):
        here.send((number, bytes(100_000)))
        assert here.recv() == (number, bytes(100_000))
        mine, its = fiber.Pipe()
        here.send(its)
        its.close()
        here.recv().send("back")
        assert mine.recv() == "back"
        mine.close()
    here.close()
    finish(child)


def open_descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def test_many_pipes_one_after_another_leave_no_descriptor():
    descriptors = None
    for _ in range(soak.count(10_000)):
        first, second = fiber.Pipe()
        first.send((1, bytes(100_000)))
        assert second.recv() == (1, bytes(100_000))
        second.send(first)
        again = first.recv()
        again.send(2)
        assert second.recv() == 2
        for end in (first, second, again, *fiber.Pipe(duplex=False)):
            end.fileno()
            end.close()
        descriptors = descriptors or open_descriptors()
    # what has come from another end is let go in the background
    until(lambda: open_descriptors() <= descriptors + 2)


# -- several processes that wait for one end


def wait_and_tell(end, news, go):
    """Wait for something to read and leave it there."""
    news.put(wait([end], PATIENCE) == [end])
    go.get()
    end.close()


def wait_and_read(end, results):
    """Read whatever comes, by one's own waiting."""
    with contextlib.suppress(EOFError):
        while wait([end], PATIENCE) == [end]:
            # another may have been faster
            if end.poll(0):
                results.put(end.recv())


def test_one_that_waited_once_keeps_nothing_from_others(ends):
    here, there = ends
    news, go, results = fiber.Queue(), fiber.Queue(), fiber.Queue()
    idle = start(wait_and_tell, there, news, go)
    here.send(0)
    assert news.get(timeout=PATIENCE)
    busy = start(wait_and_read, there, results)
    there.close()
    for number in range(1, 20):
        here.send(number)
    # the first comes back from the one that has it, and may be read after later ones
    assert sorted(results.get(timeout=PATIENCE) for _ in range(20)) == list(range(20))
    here.close()
    go.put(None)
    finish(idle, busy)


# -- the last words of a sender, whatever ends it


MESSAGES = 20


def send_and_end(end, size, ending):
    for number in range(MESSAGES):
        end.send((number, bytes(size)))
    if ending == "close":
        end.close()
    if ending in ("close", "exit"):
        os._exit(0)
    os.kill(os.getpid(), ending)


def received(end):
    numbers = []
    with contextlib.suppress(EOFError):
        while end.poll(PATIENCE):
            numbers.append(end.recv()[0])
        numbers.append("no end came")
    return numbers


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "ending",
    [
        "close",
        *(
            pytest.param(ending, marks=pytest.mark.one_host("its kernel keeps what was sent"))
            for ending in ("exit", signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)
        ),
    ],
)
def test_what_was_sent_arrives_however_the_sender_ends(ending, size):
    reader, writer = fiber.Pipe(duplex=False)
    with reader:
        child = start(send_and_end, writer, size, ending)
        writer.close()

        assert received(reader) == list(range(MESSAGES))
        child.join(PATIENCE)


@pytest.mark.one_host("its kernel keeps what was sent")
def test_what_was_sent_arrives_though_the_senders_end_is_known_before_it_is_read(monkeypatch):
    prove, forget, seen, is_forgotten = Peer.prove, Launcher.forget, set(), threading.Event()

    def prove_late(peer, *args):
        proven = prove(peer, *args)
        if proven and peer.ident in seen:
            # this connection is the pipe's, after the one by which the child got its work
            assert is_forgotten.wait(PATIENCE)
        seen.add(peer.ident if proven else None)
        return proven

    def forget_and_note(launcher, child):
        forget(launcher, child)
        is_forgotten.set()

    monkeypatch.setattr(Peer, "prove", prove_late)
    monkeypatch.setattr(Launcher, "forget", forget_and_note)
    reader, writer = _owned_pipe(store.current(), duplex=False)
    with reader:
        child = start(send_and_end, writer, 10, "exit")
        writer.close()
        assert received(reader) == list(range(MESSAGES))
        child.join(PATIENCE)
