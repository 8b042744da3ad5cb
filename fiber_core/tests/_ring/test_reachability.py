"""Members dial each other: who answers, who does not, and who is somebody else."""

import socket

import pytest

from fiber._ring.member import PROOF, Answering, KeptPort, probe
from fiber._ring.protocol import Target

OURS = b"a" * PROOF


@pytest.fixture
def port():
    kept = KeptPort()
    yield kept
    kept.close()


@pytest.fixture
def answering(port):
    found = Answering(port.listener(), OURS)
    yield found
    found.close()


def test_an_address_that_answers_is_reached(port, answering):
    found = probe([Target(3, ("127.0.0.1",), port.number, OURS)])

    assert found.reached == {3: ("127.0.0.1",)}


def test_addresses_are_told_in_their_order(port, answering):
    found = probe([Target(0, ("127.0.0.2", "127.0.0.1"), port.number, OURS)])

    assert found.reached == {0: ("127.0.0.2", "127.0.0.1")}


def test_somebody_elses_answer_is_none(port, answering):
    found = probe([Target(0, ("127.0.0.1",), port.number, b"b" * PROOF)])

    assert found.reached == {0: ()}
    assert found.failures == {0: "127.0.0.1: somebody else answers there"}


def test_a_refusal_is_told(port):
    found = probe([Target(0, ("127.0.0.1",), port.number, OURS)])

    assert found.failures == {0: "127.0.0.1: Connection refused"}


def test_who_never_answers_is_not_waited_for(port):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = probe(
            [Target(0, ("127.0.0.1",), silent.getsockname()[1], OURS)],
            patience=0.3,
        )

    assert found.failures == {0: "127.0.0.1: no answer within 0.3 s"}


def test_an_address_that_is_none_harms_nobody(port, answering):
    found = probe([Target(0, ("255.255.255.255", "127.0.0.1"), port.number, OURS)])

    assert found.reached == {0: ("127.0.0.1",)}


def test_a_kept_port_is_given_to_nobody_else_and_may_be_asked_for(port):
    others = [KeptPort() for _ in range(200)]
    assert port.number not in {one.number for one in others}
    for one in others:
        one.close()

    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert server.getsockname()[1] == port.number
