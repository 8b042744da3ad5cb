"""What processes tell each other about memory; layouts only.

Both messages are calls. A ``READ`` is answered with the bytes, a ``WRITE``, whose bytes follow,
with nothing. Neither is for more than ``MOST`` bytes, so that the owner never copies much at once.
"""

from __future__ import annotations

import enum
import struct


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    READ = 96
    WRITE = 97


#: bytes of one message at most
MOST = 2**20

#: where, how many
READ = struct.Struct("<BQQ")
#: where
WRITE = struct.Struct("<BQ")
