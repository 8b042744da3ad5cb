"""A test whose time is over is reported as failed, wherever its signal interrupted it.

The end of a loop's body may have no line number in Python 3.11 and later. pytest fails over an entry
of a traceback that has none (``TypeError`` in its formatting), which ends the whole session without
the name of the test.
"""

import types
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.excinfo is not None:
        error = call.excinfo.value.with_traceback(with_lines(call.excinfo.tb))
        call.excinfo = pytest.ExceptionInfo.from_exception(error)
    return (yield)


def with_lines(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback whose entries have line numbers: that of the function where there is none."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    repaired = None
    for entry in reversed(entries):
        line = entry.tb_lineno or entry.tb_frame.f_code.co_firstlineno
        repaired = types.TracebackType(repaired, entry.tb_frame, entry.tb_lasti, line)
    return repaired
