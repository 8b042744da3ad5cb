"""How a pool's function is called with an item."""

from __future__ import annotations

import enum


class Mode(enum.IntFlag):
    """How a function is called with an item."""

    #: ``function(item)``
    MAP = 0
    #: ``function(*item)``
    STARMAP = 1
    #: ``function(*item[0], **item[1])``
    APPLY = 2
    #: a flag: each item is pickled by itself, since not all could be pickled or read together
    SINGLY = 64
    #: a flag: each unit has a pickle of its own, see :mod:`fiber._tasks.arguments`
    APART = 128
