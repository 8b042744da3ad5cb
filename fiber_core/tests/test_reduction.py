"""Descriptors sent to other processes of the host, with the standard library's functions."""

import gc
import os
import pickle
import tempfile
import threading
from pathlib import Path

import pytest

import fiber
from children import finish
from fiber import reduction
from fiber._objects.store import Store
from wire_world import until

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(300)]
on_one_host = pytest.mark.one_host("descriptors stay on a host")


class Log:
    """An open file that libraries send so."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return opened, (reduction.DupFd(self.file.fileno()),)


def opened(copy):
    return Log(os.fdopen(copy.detach(), "a"))


def write(log, text):
    with log.file:
        log.file.write(text)


def open_descriptors(path, _=None):
    gc.collect()
    found = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    return found.count(os.path.realpath(path))


@on_one_host
def test_an_object_that_reduces_to_its_descriptor_is_an_argument_an_item_and_a_result(tmp_path):
    path = tmp_path / "log"
    with path.open("a") as file:
        log = Log(file)
        child = fiber.Process(target=write, args=(log, "argument "))
        child.start()
        finish(child)
        queue = fiber.Queue()
        child = fiber.Process(target=lambda: write(queue.get(), "item "))
        child.start()
        queue.put(log)
        finish(child)
        with fiber.Pool(1) as pool:
            pool.apply(write, (log, "task "))
            write(pool.apply(lambda log: log, (log,)), "result")
        assert path.read_text() == "argument item task result"
        until(lambda: open_descriptors(path) == 1)


@on_one_host
@pytest.mark.parametrize("kind", [fiber.Queue, fiber.SimpleQueue, fiber.Pipe])
def test_none_is_left_of_an_item_that_cannot_be_pickled(tmp_path, kind):
    made = kind()
    send = made[1].send if kind is fiber.Pipe else made.put
    with (tmp_path / "log").open("a") as file:
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
            send((Log(file), threading.Lock()))
        until(lambda: open_descriptors(file.name) == 1)


def made_beside(path, other):
    """A log and something else; of this process's descriptors only the log's is open for the path."""
    log = Log(path.open("a"))
    return log, (other() if other is not None else lambda: None)


@on_one_host
def test_none_is_left_where_it_is_made_for_each_of_two_pickles(tmp_path):
    """The first one is given up at the lambda."""
    path = tmp_path / "log"
    queue = fiber.Queue()
    with path.open("a") as file:
        queue.put((Log(file), lambda: None))
        write(queue.get()[0], "item ")
        until(lambda: open_descriptors(path) == 1)
    with fiber.Pool(1) as pool:
        write(pool.apply(made_beside, (path, None))[0], "result")
        until(lambda: pool.apply(open_descriptors, (path,)) == 0)
        with pytest.raises(fiber.pool.MaybeEncodingError):
            pool.apply(made_beside, (path, threading.Lock))
        until(lambda: pool.apply(open_descriptors, (path,)) == 0)
    assert path.read_text() == "item result"


@on_one_host
def test_a_handle_goes_through_a_pipe_and_is_the_same_open_file():
    here, there = fiber.Pipe()
    child = fiber.Process(target=lambda: there.send(os.pread(reduction.recv_handle(there), 9, 0)))
    child.start()
    with tempfile.TemporaryFile() as file:
        file.write(b"unlinked")
        file.flush()
        reduction.send_handle(here, file.fileno(), child.pid)
    assert here.recv() == b"unlinked"
    finish(child)


@on_one_host
def test_a_copy_outlives_its_original_and_can_be_detached_once():
    reading, writing = os.pipe()
    copy = reduction.DupFd(writing)
    os.close(writing)
    descriptor = copy.detach()
    os.write(descriptor, b"x")
    os.close(descriptor)
    assert os.read(reading, 2) == b"x"
    assert os.read(reading, 2) == b""
    os.close(reading)
    with pytest.raises(ValueError, match="detached before; make another one"):
        copy.detach()
    queue = fiber.SimpleQueue()
    with pytest.raises(ValueError, match="cannot pickle a DupFd that was detached"):
        queue.put(copy)


def test_one_that_is_not_sent_is_closed_and_a_number_that_is_not_open_refused(tmp_path):
    with (tmp_path / "file").open("w") as file:
        copy = reduction.DupFd(file.fileno())
        assert open_descriptors(file.name) == 2
        del copy
        assert open_descriptors(file.name) == 1
        number = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reduction.DupFd(number)


def test_where_it_cannot_be_sent_an_error_says_so(monkeypatch):
    with tempfile.TemporaryFile() as file:
        with pytest.raises(TypeError, match=r"^cannot pickle 'DupFd' object$"):
            pickle.dumps(reduction.DupFd(file.fileno()))
        monkeypatch.setattr(Store, "has_descriptors", False)
        here, there = fiber.Pipe()
        with pytest.raises(TypeError, match="on another host.*send the path or address"):
            reduction.send_handle(here, file.fileno(), None)
        here.close()
        there.close()
