"""Sockets that never block, and accepting them."""

import contextlib
import errno
import os
import queue
import socket
from types import SimpleNamespace

import pytest

from fiber._base.sockets import Buffered, accept_on
from fiber._base.threads import SharedLoop
from waiting import until


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    other.settimeout(20)
    with one, other:
        yield one, other


class Heard(SimpleNamespace):
    def __init__(self, reactor, sock):
        super().__init__(data=bytearray(), ends=queue.SimpleQueue())

        def begin():
            on = {"on_data": self.data.extend, "on_end": self.ends.put}
            self.end = Buffered(reactor, sock, **on, on_room=lambda: None)

        reactor.call_and_wait(begin)
        self.do = lambda action: reactor.call_and_wait(lambda: action(self.end))


def test_nothing_is_read_meanwhile(reactor, pair):
    heard = Heard(reactor, pair[0])
    heard.do(lambda end: end.read(False))
    pair[1].sendall(b"abc")
    pair[1].shutdown(socket.SHUT_WR)
    heard.do(lambda _: None)
    assert heard.data == b""
    heard.do(lambda end: end.read(True))
    assert heard.ends.get(timeout=20) is None
    assert heard.data == b"abc"
    heard.do(Buffered.close)


def test_one_that_is_gone_is_told_of_when_it_is_written_to(reactor, pair):
    heard = Heard(reactor, pair[0])
    pair[1].close()
    assert heard.ends.get(timeout=20) is None
    heard.do(lambda end: end.write([b"x"]))
    assert isinstance(heard.ends.get(timeout=20), OSError)
    heard.do(Buffered.close)


@pytest.fixture
def loop():
    with contextlib.closing(SharedLoop()) as loop:
        yield loop


class RefusedListener(socket.socket):
    """A listener that the system does not let accept its first two connections."""

    tries = 0
    error = errno.EMFILE

    def accept(self):
        self.tries += 1
        if self.tries <= 2:
            raise OSError(self.error, os.strerror(self.error))
        return super().accept()


@pytest.mark.parametrize("pause", [3600.0, 0.0])
@pytest.mark.parametrize(
    "error, hint", [(errno.EMFILE, "`ulimit -n`"), (errno.EPERM, "seccomp"), (errno.EIO, "seccomp")]
)
def test_a_connection_that_the_system_refuses_waits_and_keeps_nobody_busy(
    loop, caplog, pause, error, hint
):
    taken = []
    with RefusedListener() as listener:
        listener.error = error
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        accept_on(loop, listener, taken.append, pause=pause)
        with socket.create_connection(listener.getsockname(), timeout=30):
            if pause:
                until(lambda: loop.run_once(loop.now()) or listener.tries)
                for _ in range(10):
                    loop.run_once(loop.now())
                assert listener.tries == 1
            else:
                until(lambda: loop.run_once(loop.now()) or taken)
        loop.forget(listener.fileno())
    for one in taken:
        one.close()
    (record,) = caplog.records
    assert os.strerror(error) in record.getMessage()
    assert hint in record.getMessage()
