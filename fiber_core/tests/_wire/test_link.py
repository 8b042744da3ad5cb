"""One connection on each transport: any size, nothing lost, its end noticed by all."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time

import pytest

from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber.model.timing import Timing
from wire_world import TIMEOUT, Mailbox, hello, in_thread, until


class TestMessages:
    def test_each_side_knows_the_other(self, listening):
        link = listening.link("worker")
        assert link.peer == hello("listener")
        assert listening.peer("worker").hello == hello("worker")

    def test_an_echo_comes_back(self, listening):
        link = listening.link()
        for number, body in enumerate([b"", b"x", b"y" * 1000]):
            link.send(Kind.CALL, 1, number, [body])
            message = link.receive(timeout=TIMEOUT)
            assert (message.kind, message.target, message.id) == (Kind.REPLY, 1, number)
            assert bytes(message.body) == body

    def test_64_mib_are_echoed(self, listening):
        link = listening.link()
        block = os.urandom(2**20)
        link.send(Kind.CALL, 1, 1, [block] * 64)
        message = link.receive(timeout=60)
        assert len(message.body) == 64 * 2**20
        assert all(message.body[at << 20 : (at + 1) << 20] == block for at in range(64))

    @pytest.mark.parametrize("size", [-1, 0, 1, 16])
    def test_sizes_around_that_of_a_frame(self, listen, scheme, size):
        listening = listen(scheme, max_frame=4096)
        link = listening.link()
        body = os.urandom(4096 - frames.HEADER.size + size)
        link.send(Kind.CALL, 1, 1, [body])
        assert bytes(link.receive(timeout=TIMEOUT).body) == body

    def test_a_received_body_can_be_written_to(self, listening):
        """Arrays that are made of it must be as good as the sender's."""
        link = listening.link()
        for size in (100, 2 * frames.MAX_FRAME):
            link.send(Kind.CALL, 1, 1, [bytes(size)])
            assert not link.receive(timeout=TIMEOUT).body.readonly

    def test_many_threads_share_a_link(self, listening):
        link = listening.link()

        def send(name):
            for number in range(50):
                link.send(Kind.CALL, 1, name * 100 + number, [bytes([name]) * number])

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        got = [link.receive(timeout=TIMEOUT) for _ in range(400)]
        for thread in threads:
            thread.join()
        assert {message.id for message in got} == {n * 100 + m for n in range(8) for m in range(50)}
        assert all(
            bytes(message.body) == bytes([message.id // 100]) * (message.id % 100)
            for message in got
        )

    def test_more_threads_send_large_messages_than_a_side_puts_together_at_once(self, listen):
        listening = listen(max_frame=4096)
        link = listening.link()
        threads = [
            threading.Thread(
                target=link.send, args=(Kind.CALL, 1, number, [bytes([number]) * 20_000])
            )
            for number in range(100)
        ]
        for thread in threads:
            thread.start()
        got = [link.receive(timeout=TIMEOUT) for _ in range(100)]
        for thread in threads:
            thread.join()
        assert {m.id: bytes(m.body) for m in got} == {n: bytes([n]) * 20_000 for n in range(100)}

    def test_receive_returns_when_its_time_is_over(self, listening):
        link = listening.link()
        assert link.receive(timeout=0) is None
        assert link.receive(timeout=0.01) is None


class TestWindows:
    def test_a_peer_that_does_not_read_loses_nothing(self, listening):
        """Nng drops what exceeds 64 frames on the way to a peer; the window holds ours back."""
        link = listening.link()
        peer = listening.peer()
        for number in range(5000):
            peer.send(Kind.CAST, 1, number, [number.to_bytes(4, "little") * 10])

        got = [link.receive(timeout=TIMEOUT) for _ in range(5000)]
        assert [message.id for message in got] == list(range(5000))
        assert all(bytes(m.body) == m.id.to_bytes(4, "little") * 10 for m in got)

    def test_large_messages_to_a_slow_reader_arrive_whole(self, listen, scheme):
        listening = listen(scheme, max_frame=2**16)
        link = listening.link()
        peer = listening.peer()
        bodies = [os.urandom(300_000) for _ in range(20)]
        for number, body in enumerate(bodies):
            peer.send(Kind.CAST, 1, number, [body])

        assert [bytes(link.receive(timeout=TIMEOUT).body) for _ in bodies] == bodies

    def test_a_listener_that_does_not_read_holds_the_sender_back(self, listening):
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        link = listening.link()
        sent = []

        def send():
            for number in range(1000):
                link.send(Kind.CAST, 2, number, [b"x" * 2**16])
                sent.append(number)

        with listening.held():
            wait = in_thread(send)
            before = -1
            while before != len(sent):
                before = len(sent)
                time.sleep(0.1)
            assert len(sent) < 1000
        assert wait() is None
        assert [mailbox.next()[1].id for _ in range(1000)] == list(range(1000))

    def test_a_waiting_sender_can_be_interrupted_and_send_again(self, listen):
        listening = listen("ipc", max_frame=4096)
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        link = listening.link()
        main = threading.main_thread().ident

        def interrupt():
            until(lambda: link._socket._waiters)
            signal.pthread_kill(main, signal.SIGINT)

        with listening.held():
            helper = threading.Thread(target=interrupt)
            helper.start()
            with pytest.raises(KeyboardInterrupt):
                while True:
                    link.send(Kind.CAST, 9, 0, [b"x" * 20_000])
            helper.join()
        # the unfinished message gives way to the next of its number
        for _ in range(20):
            link.send(Kind.CAST, 9, 0, [b"x" * 20_000])
        link.send(Kind.CAST, 2, 7, [b"y" * 20_000])
        assert bytes(mailbox.next()[1].body) == b"y" * 20_000
        assert not link._socket._waiters

    def test_two_handlers_that_owe_acknowledgements_never_wait_for_each_other(self, listen):
        """A reader never blocks on its acknowledgements."""
        listening = listen(max_frame=4096)
        link = listening.link()
        peer = listening.peer()
        with listening.held():
            # fill the way up, as other threads of this side do
            filler = in_thread(
                lambda: [link.send(Kind.CAST, 9, n, [b"x" * 4000]) for n in range(1000)]
            )
            # and read what comes down, while nobody up there reads
            for number in range(frames.WINDOW):
                peer.send(Kind.CAST, 1, number)
            reader = in_thread(
                lambda: [link.receive(timeout=TIMEOUT).id for _ in range(frames.WINDOW)]
            )
            assert reader() == list(range(frames.WINDOW))
        for number in range(100):
            peer.send(Kind.CAST, 1, number)
        assert [link.receive(timeout=TIMEOUT).id for _ in range(100)] == list(range(100))
        filler()


class TestDescriptorsThatUserCodeTakes:
    def test_a_link_knows_whether_it_has_them(self, listening):
        link = listening.link()
        assert link.is_intact
        number = link.fds[-1]
        mine, other = os.dup(number), os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, number)
        assert not link.is_intact
        os.dup2(mine, number)
        assert link.is_intact
        os.close(mine)
        os.close(other)

    def test_one_within_a_host_leaves_alone_what_came_in_their_place(self, listen):
        link = listen("unix").link()
        number = link.fds[0]
        near, far = socket.socketpair()
        os.dup2(near.fileno(), number)
        link.close()
        del link
        gc.collect()
        theirs = socket.socket(fileno=number)
        theirs.send(b"still open")
        assert far.recv(100) == b"still open"
        for one in (near, far, theirs):
            one.close()

    def test_one_between_hosts_notices_without_use(self, listen):
        link = listen("tls+tcp").link(timing=Timing(nng_check=0.05))
        taken = threading.Event()
        link.on_descriptors_lost(taken.set)
        number = link.fds[-1]
        mine, other = os.dup(number), os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, number)
        assert taken.wait(TIMEOUT)
        os.dup2(mine, number)
        os.close(mine)
        os.close(other)
