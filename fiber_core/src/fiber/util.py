"""The names of ``multiprocessing.util``: loggers, finalizers and the like of one process.

They are the stdlib's own, whose exit handler runs in Fiber's processes as well.
"""

from multiprocessing import util as _util
from multiprocessing.util import *  # noqa: F403 - all of it, whatever this Python has

__all__ = list(_util.__all__)


def __getattr__(name: str) -> object:
    return getattr(_util, name)
