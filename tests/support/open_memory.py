"""What a process has open, for tests that nothing is left."""

import contextlib
from pathlib import Path


def open_memory(pid: int | str = "self") -> int:
    """How much memory without a name a process has open."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "memfd:fiber-memory" in str(path.readlink())
    return found
