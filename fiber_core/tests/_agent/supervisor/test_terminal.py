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
#: what lines of jobs begin with on the terminal
NAMES = (b"[a] ", b"[b] ", b"[c] ", b"0")


@pytest.fixture
def program(tmp_path):
    """Runs a master whose output is a pipe; returns it, and a pipe on which it can write."""
    with masters(tmp_path, MASTER, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as start:
        yield start


def test_bytes_pass_unchanged(program):
    data = bytes(range(256)) * 100 + b"\n\n\r\n end"
    out, err = program(f"supervised.run('tell', {data!r})").communicate(timeout=50)

    assert out == data
    assert err == b""


def test_lines_of_many_jobs_stay_whole_and_in_order_with_their_names_where_asked(program):
    body = """
    jobs = [supervised.submit("write_plenty", b"2000", name=n, log_prefix=True) for n in "abc"]
    jobs.append(supervised.submit("write_plenty", b"2000"))
    for job in jobs:
        supervised.end(job)
    """
    out, _ = program(body).communicate(timeout=50)

    lines = out.splitlines(keepends=True)
    found = {name: [line for line in lines if line.startswith(name)] for name in NAMES}
    assert sum(map(len, found.values())) == len(lines)
    for name, written in found.items():
        text = [line.removeprefix(b"" if name == b"0" else name) for line in written]
        assert [int(line[:6]) for line in text] == list(range(2000))
        assert {len(line) for line in text} == {65}


def test_the_beginning_of_a_line_is_shown(program):
    master = program("supervised.until(supervised.submit('write_partial'), lambda s: s.exit_code)")

    assert master.stdout.read(3) == b"50%"
    master.kill()


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
