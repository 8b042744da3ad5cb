"""``fiber top`` and ``fiber dashboard`` of a program in a batch job."""

import os
import sys

import pytest

from watched_run import check_watched

pytestmark = pytest.mark.timeout(240)


def test_a_program_in_a_job_tells_how_far_it_is(environ, tmp_path):
    check_watched({**os.environ, **environ}, tmp_path, sys.executable)
