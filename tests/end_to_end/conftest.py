"""Runs of commands in a folder of the test's own."""

import os

import psutil
import pytest

from children import PATIENCE, marked
from fiber._agent import rundir


@pytest.fixture
def environ(tmp_path, folder):
    """Environment of commands; when the test is over nothing of their runs is left."""
    mark = str(tmp_path)
    own = {
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TEST_MARK": mark,
    }
    yield {**os.environ, **own}
    # a ring has failed before the last of its processes is gone
    psutil.wait_procs(marked(mark), PATIENCE)
    assert marked(mark) == []
    if "FIBER_BACKEND" in os.environ:
        # where nothing else of a program that is killed runs here, the next one removes its folder
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(folder))
            rundir.sweep()
    assert [path for path in folder.rglob("*") if path.name != "fiber"] == []
