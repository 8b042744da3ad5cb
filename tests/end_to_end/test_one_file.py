"""One file, four values of FIBER_BACKEND: a user's program runs on whichever is chosen, as it is."""

import sys
from pathlib import Path

import pytest

from commands import ran

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


@pytest.mark.any_backend
@pytest.mark.timeout(300)
def test_a_program_runs_on_every_backend_as_it_is(tmp_path):
    done = ran([sys.executable, PROGRAM], cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
