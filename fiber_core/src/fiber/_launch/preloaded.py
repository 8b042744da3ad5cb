"""What the first process of a job knows before it forks workers, so that none of them has to find out."""

from __future__ import annotations

from fiber import distributions
from fiber.transport.handshake import PICKLER

# remembered by the function
distributions.version(PICKLER)
