"""Malformed command lines are errors before anything is started."""

import pytest


@pytest.mark.parametrize(
    "words, code, told",
    [
        ([], 2, "name the program"),
        (["-np", "2"], 2, "name the program"),
        (["--map-by", "node", "./a"], 2, "--map-by is an option of mpirun's: write --"),
        (["-np", "4", "--members", "1", "./a"], 1, "4 ranks do not fit on 1 members of 1 slots"),
        (["-np", "zero", "./a"], 2, "-np"),
        (["--slots", "0", "./a"], 2, "--slots"),
        (["-v", ":x", "./a"], 2, "is no volume"),
        (["--group", "two", "./a"], 2, "'two' is no group of members, which is N or N:slots=K"),
        (["--group", "2:colour=red", "./a"], 2, "is no group of members"),
        (["--group", "2:slots=0", "./a"], 2, "is no group of members"),
        (["--group", "1", "--members", "2", "./a"], 2, "--members and --group both say"),
        (["-np", "4", "--group", "1:slots=3", "./a"], 1, "4 ranks need 4 slots"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(fiber, platform, words, code, told):
    assert told in fiber.fails("mpirun", *words, code=code)
    assert platform.jobs() == []


def test_what_the_backend_does_not_do_is_refused_early(fiber, monkeypatch):
    import attrs

    from fiber.testing import fakes

    monkeypatch.setattr(fakes, "CAPABILITIES", attrs.evolve(fakes.CAPABILITIES, volumes=False))

    assert "capability 'volumes'" in fiber.fails("mpirun", "-v", "nfs", "./a")


def test_help_tells_of_mpiruns_own_options(fiber):
    text = "\n".join(fiber.lines("mpirun", "--help"))

    assert "[MPIRUN OPTIONS] -- PROGRAM" in text
    assert "--launcher-cpu" in text
