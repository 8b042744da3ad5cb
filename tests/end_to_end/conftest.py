"""Runs of commands in a folder of the test's own."""

import os

import psutil
import pytest

from children import PATIENCE, marked


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
    assert [path for path in folder.rglob("*") if path.name != "fiber"] == []
