"""The examples run on a Slurm cluster as they stand, with only the environment changed.

A pool has a worker for each CPU that the backend has for jobs, so pi is left to one node's 32.
"""

import os

import pytest

from scenarios import check_pi, check_policy

pytestmark = pytest.mark.timeout(400)


def test_an_example_runs_and_workers_may_be_killed(environ, tmp_path):
    check_policy(tmp_path, {**os.environ, **environ})


@pytest.mark.parametrize("reach", ["direct", "streams"])
def test_a_pool_takes_the_cpus_of_a_partition_whether_or_not_nodes_dial(environ, tmp_path, reach):
    of_one_node = {"FIBER_SLURM_PARTITION": "one", "FIBER_SLURM_REACH": reach}
    check_pi(tmp_path, {**os.environ, **environ, **of_one_node})
