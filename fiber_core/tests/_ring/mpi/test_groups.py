"""Groups of members with different resources, from ``--group``."""

import pytest

from fiber._ring.mpi.arguments import MemberGroup, expand_groups, merge_needs, parse_group
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import MpiHost
from fiber.model import ResourceRequest, Volume

COMMON = Need(
    resources=ResourceRequest(cpu=1.0, devices={"gpu": 1}),
    image="me/mpi",
    volumes=(Volume(source="nfs", path="/data"),),
)


@pytest.mark.parametrize(
    "word, group",
    [
        ("3", MemberGroup(members=3)),
        ("2:slots=4,gpu=1", MemberGroup(members=2, slots=4, gpu=1)),
        ("1:cpu=500m,memory=2Gi", MemberGroup(members=1, cpu=0.5, memory=2048)),
    ],
)
def test_a_word_tells_a_group(word, group):
    assert parse_group(word) == group


@pytest.mark.parametrize("word", ["", "x", "0", "1:slots", "1:slots=x", "1:size=2", "1:cpu=-1"])
def test_other_words_are_refused_with_the_form(word):
    with pytest.raises(ValueError, match="is no group of members, which is N or N:slots=K"):
        parse_group(word)


def test_members_are_numbered_through_and_have_what_their_group_or_all_have():
    groups = [MemberGroup(members=2, slots=4, gpu=2), MemberGroup(members=1, cpu=8.0)]

    hosts, needs = expand_groups(groups, 3, COMMON)

    assert hosts == (MpiHost("member-0", 4), MpiHost("member-1", 4), MpiHost("member-2", 3))
    assert needs["member-1"].resources == ResourceRequest(cpu=1.0, devices={"gpu": 2})
    assert needs["member-2"].resources == ResourceRequest(cpu=8.0, devices={"gpu": 1})
    assert {need.image for need in needs.values()} == {"me/mpi"}
    assert {need.volumes for need in needs.values()} == {COMMON.volumes}


def test_the_first_of_two_needs_wins():
    own = Need(resources=ResourceRequest(memory=64), image="me/launcher")

    assert merge_needs(own, COMMON) == Need(
        resources=ResourceRequest(cpu=1.0, memory=64, devices={"gpu": 1}),
        image="me/launcher",
        volumes=COMMON.volumes,
    )
