"""Hostfiles, and where ranks belong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._ring.mpi.hosts import (
    MpiHost,
    expected_hosts,
    hostfile,
    mismatches,
    own_addresses,
)
from fiber.exceptions import FiberError

TWO = (MpiHost("member-0", 2), MpiHost("member-1", 1))
ADDRESSES = {"launcher": "10.0.0.1", "member-0": "10.0.0.2", "member-1": "10.0.0.3"}
HOSTS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda slots: [MpiHost(f"m{number}", count) for number, count in enumerate(slots)]
)


def test_a_hostfile_is_in_the_syntax_of_its_reader_with_addresses_that_one_host_has_alone():
    assert hostfile(TWO, open_mpi=True) == "member-0 slots=2\nmember-1 slots=1\n"
    assert hostfile(TWO, open_mpi=False) == "member-0:2\nmember-1:1\n"

    found = own_addresses(TWO, ADDRESSES)
    assert found == {"member-0": "10.0.0.2", "member-1": "10.0.0.3"}
    assert hostfile(TWO, open_mpi=False, addresses=found) == "10.0.0.2:2\n10.0.0.3:1\n"


@pytest.mark.parametrize("other", ["launcher", "member-1"])
def test_a_host_that_shares_its_address_stays_a_name(other):
    assert "member-0" not in own_addresses(TWO, {**ADDRESSES, "member-0": ADDRESSES[other]})


def test_a_host_has_room():
    with pytest.raises(ValueError, match="slots"):
        MpiHost("m", 0)


def test_hosts_are_filled_one_after_another():
    assert expected_hosts(3, TWO) == ("member-0", "member-0", "member-1")
    assert expected_hosts(1, TWO) == ("member-0",)


def test_too_few_slots_are_an_error_that_tells_the_options():
    with pytest.raises(FiberError, match="4 ranks need 4 slots, and 2 members have 3.*--members"):
        expected_hosts(4, TWO)


@pytest.mark.parametrize(
    "found, message",
    [
        ({0: "member-0"}, "ranks 1, 2 never began on a member"),
        ({0: "member-0", 1: "member-0"}, "rank 2 never began on a member"),
        (dict.fromkeys(range(3), "vm"), "ranks 0, 1, 2 began on vm, which is no member"),
        ({0: "member-0", 1: "member-0", 2: "member-1", 3: "member-1"}, "rank 3 not asked for"),
        (
            {0: "member-0", 1: "member-1", 2: "member-0"},
            "rank 1 began on member-1 and belongs on member-0",
        ),
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
