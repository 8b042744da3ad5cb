"""Runs of commands in a folder of the test's own."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from children import PATIENCE, marked


@pytest.fixture
def environ(tmp_path):
    """Environment of commands; when the test is over nothing of their runs is left."""
    # pytest's own folders have names too long for a socket
    folder = tempfile.mkdtemp(prefix="fc-")
    mark = str(tmp_path)
    own = {"XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": str(tmp_path / "state"), "TEST_MARK": mark}
    yield {**os.environ, **own}
    # a ring has failed before the last of its processes is gone
    psutil.wait_procs(marked(mark), PATIENCE)
    assert marked(mark) == []
    left = [path for path in Path(folder).rglob("*") if path.name != "fiber"]
    shutil.rmtree(folder)
    assert left == []
