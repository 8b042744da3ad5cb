"""``fiber run``: a program in a job of its own, whose workers are jobs too."""

import os
import sys

import pytest

from commands import ran

pytestmark = pytest.mark.timeout(240)

_PROGRAM = """
import os
import fiber as mp

def settings(_):
    return os.environ["SLURM_JOB_PARTITION"], os.environ["SLURM_JOB_ID"]

if __name__ == "__main__":
    with mp.Pool(1) as pool:
        (partition, job), = set(pool.map(settings, range(3)))
    print("worker in", partition, "is another job:", job != os.environ["SLURM_JOB_ID"])
"""


def test_a_programs_workers_are_jobs_with_its_settings(environ, tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "fiber.cli.main", "run", "-a", "--partition", "urgent"]

    done = ran(
        [*command, "--", sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, **environ},
    )

    assert "worker in urgent is another job: True" in done.stdout, done.stdout + done.stderr
