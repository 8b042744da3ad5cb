from __future__ import annotations

import pytest

from fiber._tasks.pending import Accept, Dispatch


def test_instructions_are_values():
    assert Accept(1, 0, 5) == Accept(1, 0, 5)
    with pytest.raises(AttributeError):
        Dispatch("w", 1, 1, 0, 5, 1).stop = 6
