"""Options of ours are ours wherever they stand, and all others are mpirun's."""

import pytest

from fiber._ring.mpi.arguments import (
    CommandLine,
    MemberGroup,
    Need,
    expand_groups,
    maps_ranks,
    merge_needs,
    parse_group,
    parse_mpirun,
    rank_and_member_counts,
    split_command_line,
)
from fiber._ring.mpi.hosts import MpiHost
from fiber.model import ResourceRequest, Volume

KNOWN = {"-np": True, "--slots": True, "-v": True, "--flag": False}


@pytest.mark.parametrize(
    "line, ours, options, program",
    [
        ("-np 2 ./a -x --slots 3", "-np 2", "", "./a -x --slots 3"),
        ("-np 2 -- ./a -- b", "-np 2", "", "./a -- b"),
        ("--slots=2 -v nfs:/x --flag prog", "--slots=2 -v nfs:/x --flag", "", "prog"),
        (
            "--map-by node -np 4 -x A=1 --slots 2 -- p",
            "-np 4 --slots 2",
            "--map-by node -x A=1",
            "p",
        ),
        ("-verbose -- p", "", "-verbose", "p"),
        ("-np 2", "-np 2", "", ""),
        ("", "", "", ""),
    ],
)
def test_a_command_line_is_split(line, ours, options, program):
    parts = (tuple(part.split()) for part in (ours, options, program))

    assert split_command_line(line.split(), KNOWN) == CommandLine(*parts)


@pytest.mark.parametrize(
    "line, maps",
    [
        ("--bind-to none -x PATH", False),
        ("--map-by node", True),
        ("-ppn 2", True),
        ("--map-by=node", True),
        ("-H a,b", True),
        ("", False),
    ],
)
def test_mapping_options_are_known(line, maps):
    assert maps_ranks(line.split()) is maps


@pytest.mark.parametrize(
    "asked, found",
    [
        ((None, 1, None), (1, 1)),
        ((None, 4, None), (4, 1)),
        ((None, 2, 3), (6, 3)),
        ((4, 2, None), (4, 2)),
        ((5, 2, None), (5, 3)),
        ((2, 2, 3), (2, 3)),
    ],
)
def test_members_are_as_many_as_the_ranks_need(asked, found):
    assert rank_and_member_counts(*asked) == found


@pytest.mark.parametrize(
    "line, count, options, program",
    [
        ("mpirun -n 2 ./a -n 3", 2, "", "./a -n 3"),
        ("/opt/bin/mpiexec ./a", None, "", "./a"),
        ("mpirun --quiet -np 4 -bind-to none ./a", 4, "--quiet -bind-to none", "./a"),
        ("mpirun -mca btl ^openib -x A=b ./a", None, "-mca btl ^openib -x A=b", "./a"),
        ("mpirun --map-by=node -v p", None, "--map-by=node -v", "p"),
        ("mpiexec.hydra -genv A b -n 2 -ppn 1 p", 2, "-genv A b -ppn 1", "p"),
    ],
)
def test_a_command_of_mpiruns_is_taken_apart(line, count, options, program):
    command = line.split()

    found = parse_mpirun(command)

    assert found == (
        command[0],
        count,
        CommandLine((), tuple(options.split()), tuple(program.split())),
    )


@pytest.mark.parametrize("command", [[], ["python", "t.py"], ["horovodrun", "-np", "2"]])
def test_other_commands_are_not(command):
    assert parse_mpirun(command) is None


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
