"""The small program that ``pictures.py`` watches: 320 simulations on eight workers.

A simulation needs an accelerator, and ``pictures.py`` offers seven, so that one worker waits. Two
simulations are slow and one fails. Lines of JSON on stdout have the run's id and the progress of the map, which
begins with a line on stdin.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import TYPE_CHECKING

import attrs

import fiber as mp

if TYPE_CHECKING:
    from fiber.watching import Progress

WORKERS, CASES = 8, 320
#: one at the beginning, and one that ends after all others
SLOW, FAILING = {12, 300}, 77


@mp.meta(accelerator=1)
def simulate(case: int) -> int:
    """Take some tenths of a second, as long in each run of this program."""
    if case == FAILING:
        msg = "negative mass"
        raise ValueError(msg)
    time.sleep(8 if case in SLOW else random.Random(case).uniform(0.1, 0.6))
    return case


def say(**facts: object) -> None:
    """Print facts as one line."""
    print(json.dumps(facts), flush=True)


def tell(now: Progress) -> None:
    """Print how far the map is."""
    say(progress=attrs.asdict(now))


def main() -> None:
    """Simulate all cases, and do without the one that fails."""
    with mp.Pool(WORKERS) as pool:
        say(run=mp.status().run)
        # who watches is ready
        sys.stdin.readline()
        try:
            pool.map(simulate, range(CASES), chunksize=1, progress=tell)
        except ValueError as error:
            say(error=str(error))


if __name__ == "__main__":
    main()
