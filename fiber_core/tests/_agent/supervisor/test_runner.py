"""Jobs are started, watched and ended: by real processes.

The conformance kit shows on the local backend what every backend does.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from fiber._agent.supervisor.child import THREAD_COUNTS, environment
from fiber.exceptions import SubmitError
from fiber.model import JobSpec, Reason, ReasonKind, ResourceRequest
from supervised import until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def test_an_exception_is_exit_code_one_with_its_traceback_and_words_are_too(capfd, make):
    supervised = make()
    status = supervised.run("fail")

    assert status.exit_code == 1
    error = capfd.readouterr().err
    assert error.startswith("Traceback")
    assert "what went wrong" in error
    # the frames of the supervisor are no affair of the reader
    assert "fiber/_agent" not in error
    assert status.processes[0].log_tail[-1] == "ValueError: what went wrong"
    status = supervised.run("leave")
    assert (status.exit_code, status.processes[0].log_tail) == (1, ("said at the end",))


def test_what_a_process_noted_is_told_with_its_end_and_removed(tmp_path, make):
    supervised = make()
    folder = supervised.folder

    (ended,) = supervised.run("note", str(folder).encode()).processes
    assert ended.noted == b"\0\7"
    assert list(folder.glob("*.notes")) == []
    (ended,) = supervised.run("fail").processes
    assert ended.noted is None


def test_a_signal_right_after_the_start_is_not_swallowed(supervised):
    for _ in range(20):
        accepted = supervised.submit("wait")
        supervised.client.signal(accepted.job_id, 0, signal.SIGTERM)
        assert supervised.end(accepted).exit_code == -signal.SIGTERM


def test_terminate_kills_what_is_left_after_the_shortest_grace(supervised):
    accepted = supervised.ready("ignore_signals", processes=2)

    for grace in (1000.0, 0.01, 1000.0):
        supervised.client.terminate(accepted.job_id, grace)

    status = supervised.end(accepted)
    assert [p.exit_code for p in status.processes] == [-9, -9]
    assert status.message == "killed by SIGKILL, as asked"


@linux
@pytest.mark.parametrize("family", ["with_grandchild", "with_launcher"])
@pytest.mark.parametrize("end", ["kill", "terminate", "SIGKILL by somebody else", "exit"])
def test_what_a_process_has_started_ends_with_it(supervised, family, end):
    accepted = supervised.submit(family, b"end" if end == "exit" else b"")
    pids = [int(word) for word in supervised.lines(accepted, 1)[0].split()]

    if end == "kill":
        supervised.client.kill(accepted.job_id)
    elif end == "terminate":
        supervised.client.terminate(accepted.job_id, 100.0)
    elif end != "exit":
        os.kill(accepted.pids[0], signal.SIGKILL)

    codes = {"exit": 0, "terminate": -signal.SIGTERM}
    assert supervised.end(accepted).exit_code == codes.get(end, -signal.SIGKILL)
    until_gone(*pids)


@pytest.mark.parametrize(
    "words, cwd, told",
    [
        (["no-such-program"], None, "cannot run 'no-such-program': No such file"),
        (["/"], None, "Permission denied"),
        (["echo", "a\0b"], None, "cannot run 'echo': embedded null byte"),
        (["true"], "/no/such/folder", "cannot change to the working directory"),
    ],
)
def test_a_program_that_cannot_run_is_refused_with_the_systems_words(supervised, words, cwd, told):
    with pytest.raises(SubmitError, match=told):
        supervised.submit(words, cwd=cwd, processes=3)

    # nobody hears of it in another way
    supervised.settle()
    assert supervised.statuses == {}


def test_an_entry_that_cannot_be_started_is_an_error(supervised):
    status = supervised.run("no_such_function")

    assert status.reason == Reason(ReasonKind.START)
    assert "no_such_function" in status.message


# -- the state of a forked child when its first own line runs ----------------------------------


def test_it_is_a_process_as_any_program_starts_as(supervised, tmp_path):
    accepted = supervised.submit("tell_where", cwd=str(tmp_path))

    supervised.end(accepted)
    default = "Handlers.SIG_DFL" if sys.version_info < (3, 11) else "0"
    assert supervised.log(accepted).splitlines() == [
        str(tmp_path),
        "True",
        str([default, default]),
        "True",
        "[]",
        "True",
    ]


@linux
def test_it_is_named_as_an_interpreter_and_not_as_its_supervisor(supervised):
    accepted = supervised.ready("wait")
    name = Path(f"/proc/{accepted.pids[0]}/comm").read_text().strip()

    assert name == Path(sys.executable).name[:15]


@linux
def test_it_has_no_descriptor_of_the_supervisors_or_of_other_jobs(supervised):
    for _ in range(3):
        supervised.ready("wait")

    accepted = supervised.submit("tell_descriptors")

    supervised.end(accepted)
    # its channel, and the folder that it lists
    kinds = supervised.log(accepted)
    assert kinds.count("socket") == 1
    assert "pipe" not in kinds
    assert "anon_inode" not in kinds


@linux
def test_it_takes_no_page_for_each_job_that_its_supervisor_has(supervised):
    def faults():
        return int(supervised.lines(supervised.submit("collect_and_tell_faults"), 1)[0])

    first = faults()
    many = [faults() for _ in range(100)]

    # a job is a dozen kilobytes of the supervisor's heap: to write to them took three pages each
    assert max(many[-3:]) < first + 160


@linux
def test_its_supervisor_forgets_its_environment_once_it_runs(supervised):
    def kilobytes():
        text = Path(f"/proc/{supervised.process.pid}/smaps_rollup").read_text()
        return int(text.partition("Anonymous:")[2].split()[0])

    supervised.ready("wait")
    before = kilobytes()
    for _ in range(20):
        supervised.ready("wait", env={"FIBER_TEST": "x" * 500_000})

    assert kilobytes() < before + 4_000


@linux
def test_a_program_has_no_descriptors_but_the_standard_ones(supervised):
    accepted = supervised.submit(["ls", "/proc/self/fd"], private=None)

    supervised.end(accepted)
    assert supervised.log(accepted).split() == ["0", "1", "2", "3"]


@linux
def test_private_bytes_are_nowhere_to_be_read(supervised):
    secret = b"SECRET-4711"
    entry = supervised.ready("wait", secret)
    program = supervised.submit(["sh", "-c", "echo ready; exec sleep 60"], private=secret)
    supervised.lines(program, 1)

    for pid in (*entry.pids, *program.pids, supervised.process.pid):
        for name in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                assert secret not in file.read()
    for path in supervised.folder.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()


@pytest.mark.parametrize(
    "cpu, inherited, own, expected",
    [
        (1.5, {}, {}, dict.fromkeys(THREAD_COUNTS, "2")),
        (0.1, {}, {}, dict.fromkeys(THREAD_COUNTS, "1")),
        # those of the user stay
        (
            4,
            {"OMP_NUM_THREADS": "8"},
            {"MKL_NUM_THREADS": "7"},
            dict.fromkeys(THREAD_COUNTS, "4") | {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "7"},
        ),
        (None, {}, {}, {}),
    ],
)
def test_libraries_have_as_many_threads_as_cpus(cpu, inherited, own, expected):
    request = ResourceRequest(cpu=cpu)
    spec = JobSpec(run_id="0badcafe", name="a", argv=("a",), resources=request, env=own)

    assert environment(inherited, spec) == expected
