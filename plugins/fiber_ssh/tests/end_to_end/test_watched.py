"""``fiber top`` and ``fiber dashboard`` of a program that runs on a host."""

import os
import sys

import pytest

from watched_run import check_watched

pytestmark = pytest.mark.timeout(240)


def test_a_program_on_a_host_tells_how_far_it_is(world, tmp_path):
    environ = {**os.environ, **world.environ(slots=4), "FIBER_BACKEND": "ssh"}
    check_watched(environ, tmp_path, sys.executable)
