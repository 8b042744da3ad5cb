"""Every kind of task is counted once in the table of costs."""

import os
import sys

import pytest
from benchmarks import costs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts are read from /proc"),
    pytest.mark.skipif(
        bool(os.environ.get("FIBER_LOCAL_TRANSPORT")),
        reason="counts are those of streams between processes of one host",
    ),
]


def test_every_kind_of_task_is_counted():
    found = costs.found(few=True)

    assert len({name for name, _, _ in found}) == len(found) == 7
    for name, _, each in found:
        assert each.frames > 0, name
        assert each.bytes > 0, name
        assert each.waits >= 0, name
