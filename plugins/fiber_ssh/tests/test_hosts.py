"""Which hosts a setting or a file names, and which of them a job goes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber.exceptions import ConfigError, ResourceError
from fiber.model import ResourceRequest
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host, read_hosts
from fiber_ssh.placement import HostCapacity, choose, waiting_for


def hosts(text, **settings):
    return read_hosts(SshConfig(hosts=text, **settings))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a:8,b:4, c", [Host(name="a", slots=8), Host(name="b", slots=4), Host(name="c")]),
        (
            "you@a:2 [fe80::1]:3",
            [Host(name="a", user="you", slots=2), Host(name="fe80::1", slots=3)],
        ),
        ("[::2]", [Host(name="::2")]),
    ],
)
def test_a_list_has_hosts_and_may_have_users_and_slots(text, expected):
    assert list(hosts(text)) == expected


def test_a_file_may_have_a_line_for_each_host_and_settings_are_for_those_that_name_nothing(
    tmp_path,
):
    file = tmp_path / "hosts"
    file.write_text("# mine\na python=/opt/python env.X='two words'\n\nb  # no more\n")

    assert hosts(str(file), python="/usr/bin/python3", directory="/work") == (
        Host(name="a", python="/opt/python", directory="/work", env={"X": "two words"}),
        Host(name="b", python="/usr/bin/python3", directory="/work"),
    )


def test_a_file_has_a_section_for_each_host_and_one_for_all(tmp_path):
    file = tmp_path / "hosts.ini"
    file.write_text(
        "[*]\nuser = you\nenv.Mode = fast\n"
        "[a]\nslots = 8\nport = 2222\nkey = ~/k\naddress = 10.0.0.1\ngpus = 1,0\n"
        "[b]\nuser = other\ngpus = none\nenv.A = b = c\n"
    )

    assert hosts(str(file)) == (
        Host(
            name="a",
            slots=8,
            user="you",
            port=2222,
            key="~/k",
            address="10.0.0.1",
            gpus=(0, 1),
            env={"Mode": "fast"},
        ),
        Host(name="b", user="other", gpus=(), env={"Mode": "fast", "A": "b = c"}),
    )


@pytest.mark.parametrize(
    "text,expected",
    [
        ("", "no ssh hosts are named.*set FIBER_SSH_HOSTS to a list such as"),
        ("a:x", r"hosts \(a:x\): slots is 'x', expected a whole number"),
        ("a:0", "slots is '0'"),
        ("@a:1", r"expected \[USER@\]HOST\[:SLOTS\]"),
        ("[::1", r"expected \[ADDRESS\]:SLOTS"),
        ("fe80::1", r"in brackets, \[fe80::1\] or \[fe80::1\]:SLOTS"),
        ("a:1,b:1,a:2", "names a more than once"),
        ("./none.ini", "there is no such file"),
    ],
)
def test_invalid_lists_are_errors(text, expected):
    with pytest.raises(ConfigError, match=expected):
        hosts(text)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("[a]\nslot = 8\n", r"hosts.ini \[a\]: unknown key 'slot', allowed are slots"),
        ("[a]\npassword = x\n", "never read from configuration"),
        ("a passphrase=x\n", "hold a key with a passphrase in ssh-agent"),
        ("[a]\ngpus = all\n", "gpus is 'all'"),
        ("a 8\n", "line 1: '8' is no KEY=VALUE"),
        ("[*]\nslots = 3\n", "names no hosts"),
        ("[a]\n[a]\n", "cannot be read"),
    ],
)
def test_invalid_lines_of_a_file_are_errors_with_their_place(tmp_path, text, expected):
    file = tmp_path / "hosts.ini"
    file.write_text(text)

    with pytest.raises(ConfigError, match=expected):
        hosts(str(file))


ONE = ResourceRequest()


def free_host(name, slots, free=None, gpus=0, free_gpus=None):
    return HostCapacity(
        name=name,
        slots=slots,
        free=slots if free is None else free,
        devices={"gpu": gpus},
        free_devices={"gpu": gpus if free_gpus is None else free_gpus},
    )


def test_jobs_without_devices_prefer_hosts_without_devices():
    hosts = [free_host("a", 8, gpus=2), free_host("b", 2)]

    assert choose(hosts, ONE) == "b"
    assert choose(hosts, ResourceRequest(devices={"gpu": 1})) == "a"
    assert choose([free_host("a", 8, gpus=2), free_host("b", 2, 0)], ONE) == "a"
    # of several the first
    assert choose([free_host("a", 4), free_host("b", 4)], ONE) == "a"
    few = free_host("a", 2, gpus=2, free_gpus=1)
    assert choose([few], ResourceRequest(devices={"gpu": 2})) is None


def test_more_than_any_host_has_is_an_error_with_what_they_have():
    with pytest.raises(ResourceError, match="asks for 3 slots on one host, and a has 2 slots"):
        choose([free_host("a", 2)], ResourceRequest(cpu=3))
    with pytest.raises(ResourceError, match="4 of 'gpu' on one host.*a has 2 slots, 1 of 'gpu'"):
        choose([free_host("a", 2, gpus=1)], ResourceRequest(devices={"gpu": 4}))


def test_the_message_has_what_a_job_waits_for():
    hosts = [free_host("a", 2, 0), free_host("b", 4, 1)]

    assert waiting_for(hosts, ResourceRequest(cpu=2, devices={"gpu": 1})) == (
        "it waits for 2 free slots with 1 of 'gpu'; 1 of 6 slots on 2 hosts are free"
    )
    assert waiting_for([], ONE) == "it waits for a host that can be reached"


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.lists(st.sampled_from([None, 0.1, 0.5, 1.0, 2.0]), max_size=60),
)
def test_no_host_ever_has_more_than_its_slots_and_none_is_idle_while_jobs_wait(slots, wanted):
    used = [0.0] * len(slots)
    for cpu in wanted:
        hosts = [free_host(str(i), n, n - used[i]) for i, n in enumerate(slots)]
        # a job that names no number takes a slot
        takes = 1 if cpu is None else min(cpu, max(slots))
        name = choose(hosts, ResourceRequest(cpu=None if cpu is None else takes))
        if name is None:
            assert all(one.free < takes for one in hosts if one.slots >= takes)
        else:
            used[int(name)] += takes
            assert used[int(name)] <= slots[int(name)] + 1e-6
