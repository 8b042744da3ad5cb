"""The examples run on ssh hosts as they stand, with only the environment changed."""

import os

import pytest

from scenarios import check_pi, check_policy

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("check", [check_pi, check_policy])
def test_an_example_runs(world, tmp_path, check):
    check(tmp_path, {**os.environ, **world.environ(slots=2), "FIBER_BACKEND": "ssh"})
