"""What the first process of a job knows before it forks workers, so that none of them has to find out."""

from __future__ import annotations

from fiber._base import entry_points
from fiber._wire.handshake import PICKLER

# remembered by the function
entry_points.version(PICKLER)
