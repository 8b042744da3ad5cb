"""Output of jobs on the master's own standard output and error."""

import subprocess

import pytest

from supervised import masters

MASTER = """
supervised = Supervised(Path(sys.argv[1]))
{body}
supervised.client.close()
report("closed")
"""


@pytest.fixture
def program(tmp_path):
    """Runs a master whose output is a pipe; returns it, and a pipe on which it can write."""
    with masters(tmp_path, MASTER, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as start:
        yield start


def test_output_comes_before_the_end_is_reported(program):
    body = """
    for _ in range(20):
        supervised.run("tell", b"job\\n")
        os.write(1, b"end\\n")
    """
    out, _ = program(body).communicate(timeout=50)

    assert out == b"job\nend\n" * 20


def test_a_reader_that_takes_nothing_delays_no_end(program):
    # a pipe holds 64 KiB, and nobody reads this one until the program says that it is over
    body = """
    for _ in range(3):
        supervised.run("write_plenty", b"900")
    report("ended")
    """
    master = program(body)

    assert master.pipe.readline() == "ended\n"
    out, _ = master.communicate(timeout=50)
    assert len(out) == 3 * 900 * 65


def test_a_reader_that_takes_nothing_holds_writers_back_and_loses_nothing(program):
    body = """
    job = supervised.submit("write_plenty", b"40000")
    supervised.lines(job, 1)
    report("begun")
    supervised.end(job)
    """
    master = program(body)
    assert master.pipe.readline() == "begun\n"

    out, _ = master.communicate(timeout=50)

    assert len(out) == 40000 * 65


def test_a_reader_that_has_gone_does_no_harm(program):
    body = """
    status = supervised.run("write_plenty", b"40000")
    report(status.exit_code)
    """
    master = program(body)
    master.stdout.close()

    # a supervisor passes on what it can; its jobs write into pipes of its own
    assert master.pipe.readline() == "0\n"
