"""The witness of this host finds the kit's jobs by their environment."""

import os
import secrets
import signal
import subprocess
import sys

import pytest

from fiber.model import Job
from fiber.testing import HostWitness, Witness

# the witness sees all of this host, other runs of these tests among them
JOB = Job(id="1", name=f"job {secrets.token_hex(4)}", run_id=secrets.token_hex(4), backend="x")
SLEEP = "import signal; signal.alarm(60); print(flush=True); signal.pause()"


@pytest.fixture
def process():
    started = subprocess.Popen(
        [sys.executable, "-c", SLEEP],
        env={**os.environ, "KIT_JOB": JOB.name, "KIT_RUN": JOB.run_id},
        stdout=subprocess.PIPE,
    )
    started.stdout.readline()
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def test_a_process_with_the_jobs_name_is_seen(process):
    assert HostWitness().is_running(JOB)
    (left,) = HostWitness().left(JOB.run_id)
    assert left.startswith(f"process {process.pid}: {sys.executable} -c import signal")


def test_it_kills_as_a_stranger_does_and_what_has_ended_is_not_seen(process):
    HostWitness().kill(JOB)

    assert process.wait() == -signal.SIGKILL
    assert not HostWitness().is_running(JOB)
    assert HostWitness().left(JOB.run_id) == []


def test_nothing_to_kill_is_an_error():
    witness = HostWitness()
    witness.patience = 0.0

    with pytest.raises(LookupError, match=f"no process of {JOB.name} to kill .* was started"):
        witness.kill(JOB)


def test_what_is_not_overridden_cannot_be_asked():
    witness = HostWitness()

    assert witness.can("kill")
    assert not witness.can("calls")
    with pytest.raises(NotImplementedError):
        Witness().calls()
