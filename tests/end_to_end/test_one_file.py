"""One file, four values of FIBER_BACKEND: the program of a user runs on each of them as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines import ENGINES

PROGRAM = Path(__file__).parent / "programs" / "one_file.py"

EXPECTED = """\
pool 332833500
queue 5050
exit code 0
rank 0: y = 3.00 x + 1.00
rank 1: y = 3.00 x + 1.00
rank 2: y = 3.00 x + 1.00
restarts 1
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["local", "docker", "ssh", "k8s"])
def test_a_program_runs_on_every_backend_as_it_is(backend, tmp_path):
    with ENGINES[backend]() as variables:
        done = subprocess.run(
            [sys.executable, PROGRAM],
            env={**os.environ, "FIBER_BACKEND": backend, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
