"""A command line runs in a shell beside a job; a remote shell's options are ignored."""

import attrs
import pytest

from fiber._ring.mpi.agent import SOCKET
from fiber.model import JobSpec
from fiber.testing import FakeBackend, fakes, programs


@pytest.fixture
def job(platform):
    backend = FakeBackend(platform=platform)
    made = backend.submit(JobSpec(run_id="00000001", name="long", argv=programs.sleep_forever()))
    yield made
    backend.kill(made)
    assert platform.find(made).ended.wait(30)
    backend.close()


@pytest.mark.parametrize("before", [(), ("-x",), ("-o", "A=b", "-q"), ("-l", "me", "--")])
def test_words_are_joined_for_a_shell(fiber, job, capfd, before):
    done = fiber("rsh", *before, "me@long", 'x="a  b";', "echo", '"$x"', "--", "-p; exit 7")

    assert done.exit_code == 7
    assert capfd.readouterr().out == "a  b -- -p\n"


def test_a_job_and_words_have_to_be_named(fiber, job):
    assert "no host is named" in fiber.fails("rsh", code=2)
    assert "no command is named for host 'long'" in fiber.fails("rsh", "long", code=2)
    assert "no job is 'zz'" in fiber.fails("rsh", "zz", "true")


def test_it_is_refused_where_there_is_no_exec(fiber, job, monkeypatch):
    monkeypatch.setattr(fakes, "CAPABILITIES", attrs.evolve(fakes.CAPABILITIES, exec=False))

    told = fiber.fails("rsh", "long", "true")
    assert "fiber rsh is not supported by fake (capability 'exec')" in told
    assert "within 'fiber mpirun' HOST is a member" in told
    assert "run the words here" in told


def test_within_a_run_of_mpirun_the_host_is_a_member(fiber, monkeypatch, tmp_path):
    monkeypatch.setenv(SOCKET, str(tmp_path / "door"))

    # the agent writes to the process's own streams, as what it runs does
    assert fiber("rsh", "member-0", "true").exit_code == 255
