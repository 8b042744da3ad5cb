"""Probes between members: answers, silence, and answers of others."""

import socket

import pytest

from fiber._ring.member import PROOF_SIZE, ProbeListener, ReservedPort, probe
from fiber._ring.protocol import ProbeTarget
from fiber._ring.timing import RingTiming

OURS = b"a" * PROOF_SIZE


@pytest.fixture
def port():
    kept = ReservedPort()
    yield kept
    kept.close()


@pytest.fixture
def answering(port):
    found = ProbeListener(port.listener(), OURS)
    yield found
    found.close()


def test_an_address_that_answers_is_reached(port, answering):
    found = probe([ProbeTarget(3, ("127.0.0.1",), port.number, OURS)], RingTiming())

    assert found.reached == {3: ("127.0.0.1",)}


def test_reached_addresses_keep_their_order(port, answering):
    found = probe([ProbeTarget(0, ("127.0.0.2", "127.0.0.1"), port.number, OURS)], RingTiming())

    assert found.reached == {0: ("127.0.0.2", "127.0.0.1")}


def test_another_proof_is_no_answer(port, answering):
    found = probe([ProbeTarget(0, ("127.0.0.1",), port.number, b"b" * PROOF_SIZE)], RingTiming())

    assert found.reached == {0: ()}
    assert found.failures == {0: "127.0.0.1: another process answers there"}


def test_a_refused_connection_is_reported(port):
    found = probe([ProbeTarget(0, ("127.0.0.1",), port.number, OURS)], RingTiming())

    assert found.failures == {0: "127.0.0.1: Connection refused"}


def test_a_silent_address_is_given_up_after_the_timeout(port):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = probe(
            [ProbeTarget(0, ("127.0.0.1",), silent.getsockname()[1], OURS)],
            RingTiming(probe=0.3),
        )

    assert found.failures == {0: "127.0.0.1: no answer within 0.3 s"}


def test_an_invalid_address_affects_no_other(port, answering):
    found = probe(
        [ProbeTarget(0, ("255.255.255.255", "127.0.0.1"), port.number, OURS)], RingTiming()
    )

    assert found.reached == {0: ("127.0.0.1",)}


def test_a_reserved_port_is_not_given_out_and_can_be_bound(port):
    others = [ReservedPort() for _ in range(200)]
    assert port.number not in {one.number for one in others}
    for one in others:
        one.close()

    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert server.getsockname()[1] == port.number
