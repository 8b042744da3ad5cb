"""The names of ``multiprocessing.dummy``: the API of processes over threads of this process.

They are the stdlib's own. Threads do not leave their process, so there is nothing to add.
"""

from multiprocessing import dummy as _dummy
from multiprocessing.dummy import *  # noqa: F403 - all of it, whatever this Python has

__all__ = list(_dummy.__all__)


def __getattr__(name: str) -> object:
    return getattr(_dummy, name)
