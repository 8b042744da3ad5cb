"""Proven peers that send malformed frames: disconnected, without effect on others."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

import soak
from fiber._tasks.call import Call
from fiber._tasks.protocol import Done, Mode
from fiber._wire import codec
from fiber._wire.frames import Kind
from fiber.exceptions import PeerLostError, TransportError
from fiber.model import Timing
from wire_world import TIMEOUT, Echo, Mailbox, Pool, answers_echo, frame, hello, warnings

DAMAGED = soak.count(10_000)


class Sink:
    """Sink that keeps the results of a call."""

    def __init__(self):
        self.values = {}
        self.over = threading.Event()

    def accept(self, start, values, errors):
        self.values.update(enumerate(values, start))

    def fail(self, start, stop, error):
        self.values.update(dict.fromkeys(range(start, stop), error))

    def done(self):
        self.over.set()

    def broken(self, error):
        self.over.set()


def double(x):
    return 2 * x


class TestLiars:
    """Proven peers with malformed frames are disconnected, without effect on others."""

    @pytest.mark.parametrize(
        "data, words",
        [
            (b"short", "shorter than a header"),
            (b"XX" + bytes(30), "frame begins with"),
            (frame(Kind.HELLO, b"{}"), "HELLO from a peer that is proven already"),
            (frame(Kind.PROOF, b"{}"), "PROOF from a peer that is proven already"),
            (frame(Kind.WELCOME, b"{}"), "WELCOME from a peer that is proven already"),
            (frame(Kind.PART, b"x"), "part of message 1, which never began"),
            (frame(Kind.GRANT, ack=5), "a peer acknowledges 5 frames of 0"),
            (frame(Kind.CAST, ack=2**32 - 1), "a peer acknowledges 4294967295 frames of 0"),
            (frame(Kind.CALL, b"ab", size=1), "frame has 2 bytes of body, its message 1"),
        ],
    )
    def test_what_was_wrong_is_logged_once_with_its_name(self, listening, data, words, caplog):
        other = listening.link("other")
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        for number in range(3):
            liar = listening.stranger()
            liar.prove(hello(f"liar-{number}"))
            liar.send_bytes(data)
            assert liar.is_cut_off()
            assert mailbox.next_lost().ident == f"liar-{number}"
        assert [text for text in warnings(caplog) if words in text] == warnings(caplog)
        assert len(warnings(caplog)) == 1
        assert "liar-0" in caplog.text
        assert answers_echo(other)

    def test_frames_after_a_malformed_one_are_ignored(self, listen):
        listening = listen()
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        liar = listening.stranger()
        liar.prove(hello("liar"))
        with listening.held():
            liar.send_bytes(b"nonsense" * 10)
            liar.send_bytes(frame(Kind.CAST, b"heard", target=2))
        assert liar.is_cut_off()
        mailbox.next_lost()
        assert mailbox.messages.empty()

    @pytest.mark.timeout(1200 if soak.is_full() else 60)
    def test_damaged_frames_of_a_worker_take_down_nothing(self, listen, caplog):
        """A pool goes on with its honest worker while another sends damaged frames."""
        listening = listen(max_frame=2**16)
        pool = Pool(listening.reactor)
        listening.endpoint.serve(2, Echo())
        listening.endpoint.serve(1, pool.dispatcher)
        draw = random.Random(42)
        whole = [
            *(frame(kind, b"x" * 40, target=target) for kind in Kind for target in (0, 1, 2)),
            frame(Kind.ASK, b"\x01"),
            frame(Kind.DONE, Done(1, 0, 1, 0.01, 1).encode() + b"".join(codec.dumps(([1], None)))),
            frame(Kind.DONE, Done(1, 0, 5, 0.01, 0).encode() + b"".join(codec.dumps(([], None)))),
            frame(Kind.DONE, Done(9, 2**63, 2**64 - 1, 0.01, 0).encode()),
            frame(Kind.KEPT, bytes(16)),
            frame(Kind.KEPT, b"\xff" * 16),
            frame(Kind.MISSING, bytes(16)),
            frame(Kind.BROKEN, b"".join(codec.dumps(ValueError("x")))),
            frame(Kind.CALL, b"x" * 20, size=2**63),
        ]
        honest = listening.link("honest")
        answer_tasks(honest)
        threads = {thread.name for thread in threading.enumerate()}
        sinks = []
        liar, cut_off = None, 0
        for number in range(DAMAGED):
            if number % 50 == 0:
                sinks.append(Sink())
                pool.dispatcher.add(
                    Call(
                        number + 1,
                        double,
                        Mode.MAP,
                        sinks[-1],
                        items=[number, number + 1],
                        chunksize=None,
                        retry=True,
                    )
                )
            if liar is None:
                liar = listening.stranger()
                liar.prove(hello(f"liar-{number}"))
                # the answer of an honest frame tells that it is still there
            data = damaged(draw.choice(whole), draw)
            liar.send_bytes(data)
            liar.send_bytes(frame(Kind.CALL, target=2, number=number))
            if not answered(liar, number):
                liar.close()
                liar, cut_off = None, cut_off + 1
                listening._opened = [one for one in listening._opened if one is honest]
        if liar is not None:
            liar.close()

        for sink in sinks:
            assert sink.over.wait(TIMEOUT)
        assert echoes_at(listening, 2)
        assert cut_off > DAMAGED // 4
        assert "an event handler failed" not in caplog.text
        assert len(warnings(caplog)) <= 40
        assert threads <= {thread.name for thread in threading.enumerate()}
        honest.close()


def answered(liar, number):
    """True where the endpoint still answers; messages for workers in between are ignored."""
    try:
        while True:
            heard = liar.receive_frame()
            if heard.kind is Kind.REPLY and heard.id == number:
                return True
    except PeerLostError:
        return False


def echoes_at(listening, target):
    link = listening.link("last")
    link.send(Kind.CALL, target, 1, [b"?"])
    return bytes(link.receive(timeout=TIMEOUT).body) == b"?"


def answer_tasks(link):
    """Be an honest worker on a thread of its own, until the link is closed."""
    from fiber._tasks.worker import Worker

    def redial():
        raise PeerLostError("over")

    def work():
        with contextlib.suppress(TransportError):
            Worker(link, 1, redial, timing=Timing()).run()

    threading.Thread(target=work, name="honest").start()


def damaged(data, draw):
    """The frame with a change or two behind its magic, or as it is."""
    changed = bytearray(data)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(changed))
        what = draw.randrange(4)
        if what == 0:
            changed[at] ^= draw.randint(1, 255)
        elif what == 1:
            del changed[at + 1 :]
        elif what == 2:
            changed[at:at] = draw.randbytes(draw.randint(1, 20))
        else:
            changed[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8)])
    return bytes(changed)
