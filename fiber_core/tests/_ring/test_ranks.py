"""How ranks are assigned."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fiber._ring.membership import Seated, assign, assign_in_order
from fiber._ring.model import Host


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
