"""The names of ``multiprocessing.dummy.connection``: pipes between threads of this process."""

from multiprocessing.dummy import connection as _connection
from multiprocessing.dummy.connection import *  # noqa: F403 - all of it, whatever this Python has

__all__ = list(_connection.__all__)


def __getattr__(name: str) -> object:
    return getattr(_connection, name)
