"""``fiber top`` and ``fiber dashboard`` of a program in a batch job, and in a step of an allocation."""

import os
import sys

import pytest

from watched_run import check_watched

pytestmark = pytest.mark.timeout(240)


def test_a_program_in_a_job_tells_how_far_it_is(environ, tmp_path):
    check_watched({**os.environ, **environ}, tmp_path, sys.executable)


def test_a_program_in_a_step_tells_how_far_it_is(cluster, environ, tmp_path):
    with cluster.allocated("--nodes=2", "--ntasks=3", "--mem=2000") as job:
        check_watched({**os.environ, **environ, "SLURM_JOB_ID": job}, tmp_path, sys.executable)
