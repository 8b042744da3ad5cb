from __future__ import annotations

import pytest

from fiber._tasks.pending import CallAdded, ItemsAdded, SizeObserved, WorkerAsked, WorkerJoined


@pytest.mark.parametrize(
    "make, field",
    [
        (lambda: CallAdded(1, -1), "count"),
        (lambda: CallAdded(1, 1, 0), "chunksize"),
        (lambda: ItemsAdded(1, -1), "count"),
        (lambda: WorkerJoined("w", 0), "maxtasksperchild"),
        (lambda: WorkerAsked("w", -1), "credits"),
        (lambda: SizeObserved(1, -1.0), "bytes_per_item"),
    ],
)
def test_an_event_that_cannot_be_is_refused_by_field(make, field):
    with pytest.raises(ValueError, match=field):
        make()


def test_events_are_values():
    assert CallAdded(1, 5) == CallAdded(1, 5, None, True, True, None)
    with pytest.raises(AttributeError):
        CallAdded(1, 5).count = 6
