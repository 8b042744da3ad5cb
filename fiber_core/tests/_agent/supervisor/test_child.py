"""The state of a forked child when its first own line runs."""

import os
import sys
from pathlib import Path

import pytest

from fiber._agent.supervisor.child import THREAD_COUNTS, environment
from fiber.model import JobSpec, ResourceRequest
from supervised import until_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


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
def test_a_program_has_no_descriptors_but_the_standard_ones(supervised):
    accepted = supervised.submit(["ls", "/proc/self/fd"], private=None)

    supervised.end(accepted)
    assert supervised.log(accepted).split() == ["0", "1", "2", "3"]


def test_it_has_the_submitters_environment_with_the_specs_on_top(supervised, monkeypatch):
    monkeypatch.setenv("GIVEN_LATER", "later")
    monkeypatch.setenv("TAKEN", "x")
    accepted = supervised.submit(
        "tell_environ",
        b"GIVEN_LATER TAKEN OWN",
        env={"OWN": "y"},
        unset_env=frozenset({"TAKEN"}),
    )

    supervised.end(accepted)
    assert supervised.log(accepted) == "GIVEN_LATER later\nTAKEN None\nOWN y\n"


def test_private_bytes_reach_it_whole(supervised):
    assert supervised.run("tell_private", b"for this process alone").exit_code == 0


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


@linux
def test_it_ends_with_its_supervisor(own):
    accepted = own.ready("wait")

    own.process.kill()

    until_gone(*accepted.pids)


def test_output_is_flushed_at_the_end(supervised):
    accepted = supervised.submit("tell", b"no newline at the end")

    supervised.end(accepted)
    assert supervised.log(accepted) == "no newline at the end"


def test_modules_of_the_master_are_found(supervised):
    # the module is in a folder that is on this process's path alone
    assert "supervised_entries" not in os.environ.get("PYTHONPATH", "")
    assert supervised.run("exit_with", b"\0").exit_code == 0


def spec(**changes):
    return JobSpec(run_id="0badcafe", name="a", argv=("a",), **changes)


def test_a_job_inherits_and_its_spec_comes_on_top():
    inherited = {"A": "1", "B": "2", "C": "3"}
    asked = spec(env={"B": "x", "D": "y"}, unset_env=frozenset({"C", "D"}))

    assert environment(inherited, asked) == {"A": "1", "B": "x", "D": "y"}
    assert inherited == {"A": "1", "B": "2", "C": "3"}


def test_thread_counts_of_libraries_are_set():
    asked = spec(resources=ResourceRequest(cpu=1.5))

    assert environment({}, asked) == dict.fromkeys(THREAD_COUNTS, "2")
    assert environment({}, spec(resources=ResourceRequest(cpu=0.1)))["OMP_NUM_THREADS"] == "1"


def test_thread_counts_of_the_user_stay():
    asked = spec(resources=ResourceRequest(cpu=4), env={"MKL_NUM_THREADS": "7"})

    found = environment({"OMP_NUM_THREADS": "8"}, asked)

    assert found["OMP_NUM_THREADS"] == "8"
    assert found["MKL_NUM_THREADS"] == "7"
    assert found["OPENBLAS_NUM_THREADS"] == "4"


def test_thread_counts_are_not_set_without_a_cpu_limit():
    assert environment({}, spec()) == {}
