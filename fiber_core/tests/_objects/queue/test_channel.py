"""What an owner answers, also to peers that talk nonsense."""

import contextlib
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiber._objects import protocol
from fiber._objects.protocol import Op
from fiber._objects.queue import messages
from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import TransportError
from objects_world import put, take
from wire_world import until

NONSENSE = {
    "nothing": b"",
    "an unknown operation": b"\xff\x00",
    "an attach cut short": protocol.ATTACH.pack(Op.ATTACH, 0, 0, 0, b"")[:-1],
    "a direction that does not exist": protocol.SIZE.pack(Op.SIZE, 9),
    "a mode that is none": protocol.REQUEST.pack(Op.REQUEST, 0, 9, 1, 0, 0),
    "a wish for nothing": protocol.REQUEST.pack(Op.REQUEST, 0, 0, 0, 0, 0),
    "more settled than given": protocol.SETTLE.pack(Op.SETTLE, 0, 5),
    "more given back than given": protocol.GIVE_BACK.pack(Op.GIVE_BACK, 0, 0, 5),
    "a batch cut short": protocol.PUT.pack(Op.PUT, 0) + messages.pack([b"abc"])[0][:-1],
    "tickets that are none": protocol.PUT.pack(Op.PUT, 0)
    + b"".join(messages.pack([ItemWithReferences(b"\x02\0\0\0{]")])),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_a_peer_that_talks_nonsense_is_cut_off_and_the_others_are_served(owner, other, third, body):
    mine = owner.queue()
    bad, good = other.remote(mine), third.remote(mine)
    # as a reader that is known
    good.reader(0)
    with pytest.raises(TransportError):
        pending = bad.call([body])
        assert pending.wait(20)
        pending.result()

    until(lambda: bad.is_lost)
    put(good, b"1")
    assert take(mine) == b"1"


class Silent:
    """A peer that drops what is sent to it."""

    def __init__(self):
        self.state = {}

    def send(self, *message):
        pass


@pytest.mark.timeout(600)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_bytes_of_a_peer_leave_the_owner_working(owner, data):
    mine = owner.queue()
    put(mine, b"1")
    op = data.draw(st.sampled_from([*Op, 0, 77]))
    body = bytes([op]) + data.draw(st.binary(max_size=60))

    peer = Silent()
    with contextlib.suppress(TransportError):
        mine.on_message(peer, SimpleNamespace(body=memoryview(body), id=1))
    mine.on_peer_lost(peer)
    put(mine, b"2")
    assert take(mine) in (b"1", b"2")


def test_a_pages_name_outside_the_runs_folder_is_not_opened(owner, other, tmp_path):
    mine = owner.queue()
    theirs = other.remote(mine)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    for name in (str(secret), "../secret", "..", "", "a/b"):
        head = protocol.ATTACH.pack(Op.ATTACH, 0, 0, 1, bytes(16))
        theirs.cast([head, name.encode()])
    theirs.sync()

    assert secret.exists()
    put(mine, b"1")
    assert take(theirs) == b"1"
