"""Options of ours are ours wherever they stand, and all others are mpirun's."""

import pytest

from fiber._ring.mpi.arguments import (
    CommandLine,
    maps_ranks,
    parse_mpirun,
    rank_and_member_counts,
    split_command_line,
)
from fiber.exceptions import FiberError

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


def test_mpiruns_options_must_end_with_two_hyphens():
    with pytest.raises(FiberError, match="--map-by is an option of mpirun's: write --"):
        split_command_line(["--map-by", "node", "./a"], KNOWN)


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


def test_ranks_without_room_are_an_error_with_its_cure():
    with pytest.raises(FiberError, match="5 ranks do not fit on 2 members of 2 slots.*--members 3"):
        rank_and_member_counts(5, 2, 2)


@pytest.mark.parametrize(
    "line, count, options, program",
    [
        ("mpirun -n 2 ./a -n 3", 2, "", "./a -n 3"),
        ("/opt/bin/mpiexec ./a", None, "", "./a"),
        (
            "mpirun --allow-run-as-root -np 4 -bind-to none ./a",
            4,
            "--allow-run-as-root -bind-to none",
            "./a",
        ),
        (
            "mpirun -mca btl ^openib -x A=b -x PATH ./a",
            None,
            "-mca btl ^openib -x A=b -x PATH",
            "./a",
        ),
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
