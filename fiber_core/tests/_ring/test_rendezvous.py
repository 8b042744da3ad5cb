"""Rendezvous: hosts, probes between members, chosen addresses, ranks and the member table."""

import contextlib
import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._ring.member import ReservedPort
from fiber._ring.membership import Seated, assign, assign_in_order
from fiber._ring.model import Failure, Host
from fiber._ring.protocol import Address, Hello, ProbeResult, ProbeTarget
from fiber._ring.reachability import (
    PROOF_SIZE,
    ProbeListener,
    best_first,
    probe,
    this_addresses,
)
from fiber._ring.rendezvous import choose, members, targets


def test_loopback_comes_last_and_the_address_towards_the_parent_first():
    found = [
        Address("127.0.0.1", "lo"),
        Address("169.254.0.1", "local"),
        Address("172.17.0.1", "docker0"),
        Address("10.0.0.1", "eth0"),
    ]

    assert [one.interface for one in best_first(found)] == ["docker0", "eth0", "local", "lo"]
    # where nobody is elsewhere no other address is told, or listened at
    assert [one.ip for one in best_first(found, same_host=True)] == ["127.0.0.1"]
    local = [Address("127.0.0.2", "a"), Address("127.0.0.1", "b")]
    for url, first in (
        ("tls+tcp://127.0.0.1:5", "127.0.0.1"),
        ("unix:///tmp/x", "127.0.0.2"),
        ("tls+tcp://[nonsense:5", "127.0.0.2"),
    ):
        assert best_first(local, url)[0].ip == first


def test_this_hosts_addresses_are_those_that_are_up():
    found = {(one.ip, one.network) for one in this_addresses()}
    assert ("127.0.0.1", "127.0.0.0/8") in found
    assert all("." in ip for ip, _ in found)


OURS = b"a" * PROOF_SIZE


@pytest.fixture
def port():
    with contextlib.closing(ReservedPort()) as kept:
        yield kept


@pytest.fixture
def answering(port):
    with contextlib.closing(ProbeListener(port.listener(), OURS)) as found:
        yield found


@pytest.mark.parametrize(
    "ips, reached",
    [
        (("127.0.0.2", "127.0.0.1"), ("127.0.0.2", "127.0.0.1")),
        # one that cannot be dialled affects no other
        (("255.255.255.255", "127.0.0.1"), ("127.0.0.1",)),
    ],
    ids=["in order", "an invalid one"],
)
def test_addresses_that_answer_are_reached(port, answering, ips, reached):
    found = probe([ProbeTarget(3, ips, port.number, OURS)], 5.0, 0.5)

    assert found.reached == {3: reached}


def test_another_proof_is_no_answer(port, answering):
    found = probe([ProbeTarget(0, ("127.0.0.1",), port.number, b"b" * PROOF_SIZE)], 5.0, 0.5)

    assert found.reached == {0: ()}
    assert found.failures == {0: "127.0.0.1: another process answers there"}


def test_addresses_that_refuse_or_cannot_be_dialled_are_not_waited_for(port):
    ips = ("127.0.0.1", "255.255.255.255")
    dialled = [ProbeTarget(index, (ip,), port.number, OURS) for index, ip in enumerate(ips)]

    found = probe(dialled, 600.0, 0.5)

    assert found.reached == {0: (), 1: ()}
    assert found.failures[0] == "127.0.0.1: Connection refused"
    assert found.failures[1].startswith("255.255.255.255: ")


def test_a_silent_address_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        found = probe([ProbeTarget(0, ("127.0.0.1",), port, OURS)], 0.3, 0.5)

    assert found.failures == {0: "127.0.0.1: no answer within 0.3 s"}


def test_a_reserved_port_is_not_given_out_and_can_be_bound(port):
    others = [ReservedPort() for _ in range(200)]
    assert port.number not in {one.number for one in others}
    for one in others:
        one.close()

    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert server.getsockname()[1] == port.number


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=8))
def test_ranks_are_complete_contiguous_on_hosts_and_begin_at_seat_0(workers):
    seated = [
        Seated(number + 10, number, Host(host, host), slots)
        for number, (host, slots) in enumerate(workers)
    ]

    found = assign(reversed(seated))

    ranks = [rank for placement in found for rank in placement.ranks]
    assert ranks == list(range(sum(slots for _, slots in workers)))
    assert found[0].seat == 0
    hosts = [placement.host.key for placement in found for _ in placement.ranks]
    # each host once, without a gap
    assert len([1 for one, two in itertools.pairwise(hosts) if one != two]) == (len(set(hosts)) - 1)
    for placement in found:
        assert placement.nodes == len(set(hosts))
        assert placement.local_size == hosts.count(placement.host.key)
        assert hosts.index(placement.host.key) + placement.local_rank == placement.first_rank


def test_earlier_members_come_first_whatever_their_seats():
    here, there = Host("a", "a"), Host("b", "b")
    workers = [Seated(7, 2, here, 1), Seated(5, 1, there, 2), Seated(9, 0, here, 1)]

    found = assign_in_order(workers)

    assert [(one.worker, one.first_rank) for one in found] == [(7, 0), (9, 1), (5, 2)]


def hello(host, *ips, port=4000):
    addresses = tuple(Address(ip, f"if{number}") for number, ip in enumerate(ips))
    return Hello(host=Host(host, host), pid=1, addresses=addresses, port=port, proof=b"p")


LO = "127.0.0.1"
APART = [hello("a", "10.0.0.1", LO), hello("b", "10.0.0.2", LO)]
TOGETHER = [hello("a", "10.0.0.1", LO)] * 2


@pytest.mark.parametrize(
    "hellos, may_grow, ips",
    [
        (APART, False, ("10.0.0.2",)),
        (TOGETHER, False, (LO,)),
        # members on other hosts may join
        (TOGETHER, True, ("10.0.0.1",)),
        ([hello("a", LO)] * 2, True, (LO,)),
    ],
    ids=["between hosts", "on one host", "one that may grow", "a host of loopback alone"],
)
def test_others_are_dialled_by_loopback_where_all_are_on_one_host(hellos, may_grow, ips):
    found = targets(hellos, 0, may_grow=may_grow)

    assert [(one.index, one.ips) for one in found] == [(1, ips)]


def test_the_first_address_that_all_others_reached_is_chosen():
    hellos = [
        hello("a", "172.17.0.1", "10.0.0.1"),
        hello("b", "10.0.0.2"),
        hello("c", "172.17.0.1", "10.0.0.3"),
    ]
    probed = [
        ProbeResult({1: ("10.0.0.2",), 2: ("10.0.0.3",)}, {}),
        ProbeResult({0: ("172.17.0.1", "10.0.0.1"), 2: ("10.0.0.3",)}, {}),
        ProbeResult({0: ("10.0.0.1",), 1: ("10.0.0.2",)}, {}),
    ]

    chosen = choose(hellos, probed)

    assert [address.ip for address in chosen] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert chosen[0].interface == "if1"


@pytest.mark.parametrize(
    "hellos, probed, told",
    [
        (
            [hello("a", "10.0.0.1", port=41), hello("b", "10.0.0.2", port=42)],
            [ProbeResult({}, {1: "10.0.0.2: no answer"}), ProbeResult({0: ("10.0.0.1",)}, {})],
            "member 0 (a) cannot reach member 1 (b) at port 42: 10.0.0.2: no answer",
        ),
        (
            [hello("a", "10.0.0.1", "10.9.0.1"), hello("b", "x"), hello("c", "y")],
            [
                ProbeResult({1: ("x",), 2: ("y",)}, {}),
                ProbeResult({0: ("10.0.0.1",), 2: ("y",)}, {}),
                ProbeResult({0: ("10.9.0.1",), 1: ("x",)}, {}),
            ],
            "no address of member 0 (a) at port 4000 is reached by all others",
        ),
    ],
    ids=["a pair", "no address for all"],
)
def test_members_that_cannot_reach_each_other_are_named_with_the_port(hellos, probed, told):
    found = choose(hellos, probed)

    assert isinstance(found, Failure)
    assert told in found.message


def test_the_member_table_is_ordered_by_rank():
    placements = assign([Seated(7, 0, Host("a", "a"), 2), Seated(8, 1, Host("b", "b"), 1)])
    hellos = [hello("a", port=1), hello("a", port=2), hello("b", port=3)]
    chosen = [Address("1.1.1.1", "e0"), Address("1.1.1.1", "e0"), Address("2.2.2.2", "e1")]

    found = members(placements, hellos, chosen)

    assert [(m.rank, m.ip, m.port, m.local_rank, m.node, m.interface) for m in found] == [
        (0, "1.1.1.1", 1, 0, 0, "e0"),
        (1, "1.1.1.1", 2, 1, 0, "e0"),
        (2, "2.2.2.2", 3, 0, 1, "e1"),
    ]
