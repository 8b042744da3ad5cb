"""Named blocks of shared memory, as the system has them."""

import os

from fiber._agent import named_memory


def is_there(name: str) -> bool:
    """True where a process could open a block of that name."""
    try:
        os.close(named_memory.open_block(name))
    except FileNotFoundError:
        return False
    return True
