"""Networks are chosen by what members reached, and unreachable pairs are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._ring.model import Host
from fiber._ring.mpi.ranks import MpiHost, expected_hosts, hostfile, mismatches, own_addresses
from fiber._ring.protocol import Address, Hello, ProbeResult
from fiber._ring.reachability import choose_networks, probe_targets
from fiber.exceptions import FiberError

LO = Address("127.0.0.1", "lo", "127.0.0.0/8", 1)
BRIDGE = Address("172.17.0.1", "docker0", "172.17.0.0/16", 3)


def eth(number, network="10.0.0.0/24", interface="eth0"):
    address = f"{network.rpartition('.')[0]}.{number}"
    return Address(address, interface, network, index=100 + number)


def hello(*addresses, host="h", port=4000):
    proof = host.encode()
    return Hello(host=Host(host, host), pid=1, addresses=addresses, port=port, proof=proof)


def reach(hellos, *kinds):
    """Return probe results where addresses of these networks work, and no others."""
    return {
        asker: ProbeResult(
            {
                target.index: tuple(
                    found.ip for found in hellos[target.index].addresses if found.network in kinds
                )
                for target in probe_targets(asker, hellos)
            },
            {},
        )
        for asker in hellos
    }


@pytest.fixture
def hellos():
    return {
        "launcher": hello(LO, BRIDGE, eth(1), host="vm0"),
        "member-0": hello(LO, BRIDGE, eth(2, interface="ens3"), host="vm1", port=4001),
        "member-1": hello(LO, BRIDGE, eth(3), host="vm2", port=4002),
    }


def test_one_host_talks_by_loopback(hellos):
    found = choose_networks(hellos, reach(hellos, "127.0.0.0/8", "10.0.0.0/24"))

    assert (found.names, found.one_host) == (("127.0.0.0/8",), True)
    assert {address.interface for address in found.chosen.values()} == {"lo"}


def test_hosts_use_the_network_that_they_share(hellos):
    found = choose_networks(hellos, reach(hellos, "10.0.0.0/24"))

    assert (found.names, found.one_host) == (("10.0.0.0/24",), False)
    chosen = [(name, address.interface, address.index) for name, address in found.chosen.items()]
    assert chosen == [
        ("launcher", "eth0", 101),
        ("member-0", "ens3", 102),
        ("member-1", "eth0", 103),
    ]


def test_hosts_of_several_networks_with_a_way_between_them_use_them_all():
    hellos = {
        "launcher": hello(LO, eth(1, "10.1.0.0/24")),
        "member-0": hello(LO, eth(1, "10.2.0.0/24")),
    }

    found = choose_networks(hellos, reach(hellos, "10.1.0.0/24", "10.2.0.0/24"))

    assert found.names == ("10.1.0.0/24", "10.2.0.0/24")


def test_a_network_that_drops_packets_is_left_out():
    hellos = {
        name: hello(LO, eth(number, "10.9.0.0/24", "bad0"), eth(number))
        for number, name in enumerate(("launcher", "member-0", "member-1"))
    }

    assert choose_networks(hellos, reach(hellos, "10.0.0.0/24")).names == ("10.0.0.0/24",)


def test_a_pair_that_cannot_meet_is_named_with_addresses_and_port(hellos):
    reached = reach(hellos, "10.0.0.0/24")
    reached["member-0"].reached["member-1"] = ()
    reached["launcher"].reached["member-1"] = ()
    reached["launcher"].failures["member-1"] = "10.0.0.3: connection refused"

    with pytest.raises(FiberError) as info:
        choose_networks(hellos, reached)

    assert str(info.value).startswith(
        "launcher (vm0) cannot reach member-1 (vm2) at port 4002: 10.0.0.3: connection refused; "
        "member-0 (vm1) cannot reach member-1 (vm2) at port 4002: it has 172.17.0.1, 10.0.0.3; MPI"
    )


def test_one_that_is_reached_at_other_addresses_by_each_is_named(hellos):
    reached = reach(hellos, "10.0.0.0/24", "172.17.0.0/16")
    for asker, address in (("launcher", "10.0.0.3"), ("member-0", "172.17.0.1")):
        reached[asker].reached["member-1"] = (address,)

    with pytest.raises(FiberError, match="member-1 has no address that all other members reach"):
        choose_networks(hellos, reached)


def test_of_many_pairs_some_are_named_and_the_others_counted():
    hellos = {f"m{n}": hello(LO, eth(n), host=f"h{n}") for n in range(5)}

    with pytest.raises(FiberError, match="and 17 more pairs"):
        choose_networks(hellos, reach(hellos))


def test_of_very_many_each_dials_some_and_the_launcher():
    hellos = {f"m{n}": hello(eth(1), host=f"h{n}") for n in range(200)}

    found = probe_targets("m10", hellos)
    assert len(found) == 65
    assert "m0" in {target.index for target in found}
    assert choose_networks(hellos, reach(hellos, "10.0.0.0/24")).names == ("10.0.0.0/24",)


def test_a_member_is_dialled_at_all_its_addresses_and_known_by_its_own_proof(hellos):
    launcher, *_ = probe_targets("member-1", hellos)

    assert (launcher.index, launcher.port) == ("launcher", 4000)
    assert launcher.ips == ("127.0.0.1", "172.17.0.1", "10.0.0.1")
    assert launcher.proof == b"vm0"


TWO = (MpiHost("member-0", 2), MpiHost("member-1", 1))
ADDRESSES = {"launcher": "10.0.0.1", "member-0": "10.0.0.2", "member-1": "10.0.0.3"}
HOSTS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda slots: [MpiHost(f"m{number}", count) for number, count in enumerate(slots)]
)


def test_a_hostfile_has_the_addresses_that_one_host_has_alone():
    found = own_addresses(TWO, ADDRESSES)
    assert found == {"member-0": "10.0.0.2", "member-1": "10.0.0.3"}
    assert hostfile(TWO, open_mpi=False, addresses=found) == "10.0.0.2:2\n10.0.0.3:1\n"


@pytest.mark.parametrize("other", ["launcher", "member-1"])
def test_a_host_that_shares_its_address_stays_a_name(other):
    assert "member-0" not in own_addresses(TWO, {**ADDRESSES, "member-0": ADDRESSES[other]})


@pytest.mark.parametrize(
    "found, message",
    [
        ({0: "member-0"}, "ranks 1, 2 never began on a member"),
        ({0: "member-0", 1: "member-0"}, "rank 2 never began on a member"),
        (dict.fromkeys(range(3), "vm"), "ranks 0, 1, 2 began on vm, which is no member"),
        ({0: "member-0", 1: "member-0", 2: "member-1", 3: "member-1"}, "rank 3 not asked for"),
    ],
)
def test_a_rank_on_the_wrong_host_is_reported(found, message):
    assert message in mismatches(found, 3, TWO)


def test_where_the_user_maps_only_room_counts():
    elsewhere = {0: "member-1", 1: "member-0", 2: "member-0"}

    assert mismatches(elsewhere, 3, TWO, strict=False) == []
    crowded = {0: "member-1", 1: "member-1", 2: "member-0"}
    assert mismatches(crowded, 3, TWO, strict=False) == ["member-1 has 1 ranks too many"]


@given(hosts=HOSTS, data=st.data())
def test_what_is_expected_is_never_wrong_and_a_rank_on_an_unknown_host_always(hosts, data):
    count = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    found = dict(enumerate(expected_hosts(count, hosts)))
    assert mismatches(found, count, hosts) == mismatches(found, count, hosts, strict=False) == []

    found[data.draw(st.integers(0, count - 1))] = "launcher"

    assert mismatches(found, count, hosts)
    assert mismatches(found, count, hosts, strict=False)
