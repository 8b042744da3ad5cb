"""Which host a job goes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber.exceptions import ResourceError
from fiber.model import ResourceRequest
from fiber_ssh.placement import HostCapacity, choose, slots_of, waiting_for

ONE = ResourceRequest()


def host(name, slots, free=None, gpus=0, free_gpus=None):
    return HostCapacity(
        name=name,
        slots=slots,
        free=slots if free is None else free,
        devices={"gpu": gpus},
        free_devices={"gpu": gpus if free_gpus is None else free_gpus},
    )


def test_a_job_takes_a_slot_or_its_cpus():
    assert slots_of(ONE) == 1
    assert slots_of(ResourceRequest(cpu=0.5)) == 0.5


def test_the_host_with_the_most_free_slots_is_chosen_and_of_several_the_first():
    assert choose([host("a", 8, 2), host("b", 4, 3)], ONE) == "b"
    assert choose([host("a", 4), host("b", 4)], ONE) == "a"


def test_jobs_without_devices_prefer_hosts_without_devices():
    hosts = [host("a", 8, gpus=2), host("b", 2)]

    assert choose(hosts, ONE) == "b"
    assert choose(hosts, ResourceRequest(devices={"gpu": 1})) == "a"
    assert choose([host("a", 8, gpus=2), host("b", 2, 0)], ONE) == "a"


def test_a_job_waits_while_others_hold_what_it_needs():
    assert choose([host("a", 2, 0)], ONE) is None
    assert choose([host("a", 2, gpus=2, free_gpus=1)], ResourceRequest(devices={"gpu": 2})) is None
    assert choose([], ONE) is None


def test_more_than_any_host_has_is_an_error_with_what_they_have():
    with pytest.raises(ResourceError, match="asks for 3 slots on one host, and a has 2 slots"):
        choose([host("a", 2)], ResourceRequest(cpu=3))
    with pytest.raises(ResourceError, match="4 of 'gpu' on one host.*a has 2 slots, 1 of 'gpu'"):
        choose([host("a", 2, gpus=1)], ResourceRequest(devices={"gpu": 4}))


def test_the_message_has_what_a_job_waits_for():
    hosts = [host("a", 2, 0), host("b", 4, 1)]

    assert waiting_for(hosts, ResourceRequest(cpu=2, devices={"gpu": 1})) == (
        "it waits for 2 free slots with 1 of 'gpu'; 1 of 6 slots on 2 hosts are free"
    )
    assert waiting_for([], ONE) == "it waits for a host that can be reached"


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), max_size=60),
)
def test_no_host_ever_has_more_than_its_slots_and_none_is_idle_while_jobs_wait(slots, wanted):
    used = [0.0] * len(slots)
    for cpu in wanted:
        hosts = [host(str(i), n, n - used[i]) for i, n in enumerate(slots)]
        request = ResourceRequest(cpu=min(cpu, max(slots)))
        name = choose(hosts, request)
        if name is None:
            assert all(one.free < request.cpu for one in hosts if one.slots >= request.cpu)
        else:
            used[int(name)] += request.cpu
            assert used[int(name)] <= slots[int(name)] + 1e-6
