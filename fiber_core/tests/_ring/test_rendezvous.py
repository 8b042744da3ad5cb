"""Rendezvous: targets of each member, chosen addresses and the member table."""

from fiber._ring.membership import Seated, assign
from fiber._ring.model import Host
from fiber._ring.protocol import Address, Hello, ProbeResult
from fiber._ring.rendezvous import Unreachable, choose, members, targets


def hello(host, *ips, port=4000):
    addresses = tuple(Address(ip, f"if{number}") for number, ip in enumerate(ips))
    return Hello(host=Host(host, host), pid=1, addresses=addresses, port=port, proof=b"p")


def test_no_member_dials_itself_and_loopback_is_not_used_between_hosts():
    hellos = [hello("a", "10.0.0.1", "127.0.0.1"), hello("b", "10.0.0.2", "127.0.0.1")]

    assert [(one.index, one.ips) for one in targets(hellos, 0)] == [(1, ("10.0.0.2",))]


def test_on_one_host_loopback_is_used():
    hellos = [hello("a", "10.0.0.1", "127.0.0.1")] * 2

    assert [one.ips for one in targets(hellos, 0)] == [("127.0.0.1",)]


def test_where_members_on_other_hosts_may_join_loopback_is_not_used():
    hellos = [hello("a", "10.0.0.1", "127.0.0.1")] * 2

    assert [one.ips for one in targets(hellos, 0, may_grow=True)] == [("10.0.0.1",)]
    alone = [hello("a", "127.0.0.1")] * 2
    assert [one.ips for one in targets(alone, 0, may_grow=True)] == [("127.0.0.1",)]


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


def test_a_pair_that_cannot_reach_each_other_is_named_with_its_port():
    hellos = [hello("a", "10.0.0.1", port=41), hello("b", "10.0.0.2", port=42)]
    probed = [
        ProbeResult({}, {1: "10.0.0.2: no answer within 5 s"}),
        ProbeResult({0: ("10.0.0.1",)}, {}),
    ]

    found = choose(hellos, probed)

    assert isinstance(found, Unreachable)
    assert (
        "member 0 (a) cannot reach member 1 (b) at port 42: 10.0.0.2: no answer within 5 s"
        in found.failure.message
    )


def test_addresses_that_each_reach_some_are_no_address_for_all():
    hellos = [hello("a", "10.0.0.1", "10.9.0.1"), hello("b", "x"), hello("c", "y")]
    probed = [
        ProbeResult({1: ("x",), 2: ("y",)}, {}),
        ProbeResult({0: ("10.0.0.1",), 2: ("y",)}, {}),
        ProbeResult({0: ("10.9.0.1",), 1: ("x",)}, {}),
    ]

    found = choose(hellos, probed)

    assert "no address of member 0 (a) at port 4000 is reached by all others" in str(found.failure)


def test_the_member_table_is_ordered_by_rank():
    placements = assign(
        [Seated(7, 0, Host("a", "a"), 2), Seated(8, 1, Host("b", "b"), 1)],
    )
    hellos = [hello("a", port=1), hello("a", port=2), hello("b", port=3)]
    chosen = [Address("1.1.1.1", "e0"), Address("1.1.1.1", "e0"), Address("2.2.2.2", "e1")]

    found = members(placements, hellos, chosen)

    assert [(m.rank, m.ip, m.port, m.local_rank, m.node, m.interface) for m in found] == [
        (0, "1.1.1.1", 1, 0, 0, "e0"),
        (1, "1.1.1.1", 2, 1, 0, "e0"),
        (2, "2.2.2.2", 3, 0, 1, "e1"),
    ]
