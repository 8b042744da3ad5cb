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
        error = call.excinfo.value
        repaired = with_lines(error.__traceback__)
        if repaired is not error.__traceback__:
            call.excinfo = pytest.ExceptionInfo.from_exception(error.with_traceback(repaired))
    return (yield)


def with_lines(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback whose entries have line numbers: that of the function where there is none."""
    entries = []
    entry = traceback
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    lines: list[int | None] = [entry.tb_lineno for entry in entries]
    if None not in lines:
        return traceback
    repaired = None
    for entry, line in zip(reversed(entries), reversed(lines), strict=True):
        first = entry.tb_frame.f_code.co_firstlineno
        repaired = types.TracebackType(
            repaired, entry.tb_frame, entry.tb_lasti, first if line is None else line
        )
    return repaired
