"""The examples run on a Slurm cluster as they stand, with only the environment changed."""

import os

import pytest

from scenarios import check_pi, check_policy

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("check", [check_pi, check_policy])
def test_an_example_runs(environ, tmp_path, check):
    check(tmp_path, {**os.environ, **environ})


def test_one_runs_where_no_node_can_dial_the_program(environ, tmp_path):
    check_pi(tmp_path, {**os.environ, **environ, "FIBER_SLURM_REACH": "streams"})
