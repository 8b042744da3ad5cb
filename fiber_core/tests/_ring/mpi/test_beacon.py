"""A beacon answers with its name to those that have the token, and to no others."""

import socket

from fiber._ring.mpi.networks import Beacon, addresses, dial


def test_a_beacon_is_reached_under_its_own_name_only():
    beacon = Beacon("member-0", "secret", 4.0)
    try:
        targets = [("member-0", "127.0.0.1", beacon.port), ("member-1", "127.0.0.1", beacon.port)]

        assert dial("secret", targets, 4.0) == {("member-0", "127.0.0.1")}
        assert dial("guess", targets, 4.0) == frozenset()
        assert dial("secret", [], 4.0) == frozenset()
    finally:
        beacon.close()

    assert dial("secret", targets, 4.0) == frozenset()


def test_strangers_get_no_word():
    beacon = Beacon("member-0", "secret", 4.0)
    try:
        with socket.create_connection(("127.0.0.1", beacon.port)) as stranger:
            stranger.sendall(b"hello\n")
            assert stranger.recv(100) == b""
    finally:
        beacon.close()


def test_addresses_come_with_their_networks():
    found = {address.address: address for address in addresses()}

    assert found["127.0.0.1"].network == "127.0.0.0/8"
