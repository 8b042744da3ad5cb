"""How often a fault test repeats: the full count by ``tox -e soak``, about a fiftieth in CI.

On an engine, where each process is a job that takes seconds, it is a quarter of that.

A soak run is seeded and resumable: each finished round is a line of JSON in the file that
``SOAK_LOG`` names, and a round that is there already is not run again. After ``SOAK_SECONDS`` seconds
no further one begins.
"""

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

#: CI runs this part of the full count
PART, PART_ON_ENGINES = 50, 200


def is_full() -> bool:
    """True where the full counts are asked for (``SOAK=1``)."""
    return os.environ.get("SOAK", "") not in ("", "0")


def count(full: int, *, least: int = 1) -> int:
    """How often to repeat what the full run repeats ``full`` times; both are printed."""
    part = PART if os.environ.get("FIBER_BACKEND", "local") == "local" else PART_ON_ENGINES
    now = full if is_full() else max(least, full // part)
    print(f"\n{now} of {full} (SOAK=1 for all)")
    return now


def places(case: int = 0) -> Iterator[int]:
    """Numbers from 1 on of the places at which something is done; in CI every third one.

    Args:
        case: number of the case among those that go the same way, so that together they leave none out.
    """
    return itertools.count(1) if is_full() else itertools.count(1 + case % 3, 3)


@attrs.define
class Round:
    """One seeded repetition; :meth:`note` what was counted in it."""

    name: str
    seed: int
    #: chance of its own, by its seed
    rng: random.Random = attrs.field(init=False)
    facts: dict[str, Any] = attrs.field(factory=dict)

    @rng.default
    def _seeded(self) -> random.Random:
        return random.Random(self.seed)

    def note(self, **facts: Any) -> None:
        """Remember what was counted."""
        self.facts.update(facts)


def rounds(name: str, full: int, *, least: int = 1) -> Iterator[Round]:
    """The rounds of a test that are still to be run, each with its seed."""
    for (current,) in batches(name, full, 1, least=least):
        yield current


def batches(name: str, full: int, size: int, *, least: int = 1) -> Iterator[list[Round]]:
    """The rounds that are still to be run, so many at the same time.

    Args:
        name: of the test.
        full: how many rounds the full run has.
        size: of a batch.
        least: how many there are at least.
    """
    log = os.environ.get("SOAK_LOG")
    until = time.monotonic() + float(os.environ.get("SOAK_SECONDS") or "inf")
    done = _done(Path(log), name) if log and is_full() else set()
    left = [seed for seed in range(count(full, least=least)) if seed not in done]
    for first in range(0, len(left), size):
        if time.monotonic() > until:
            return
        batch = [Round(name, seed) for seed in left[first : first + size]]
        began = time.monotonic()
        yield batch
        seconds = round(time.monotonic() - began, 3)
        for current in batch:
            current.note(seconds=seconds)
            if log:
                with open(log, "a") as stream:
                    line = {"test": name, "seed": current.seed, **current.facts}
                    stream.write(json.dumps(line) + "\n")


def _done(log: Path, name: str) -> set[int]:
    if not log.exists():
        return set()
    lines = (json.loads(line) for line in log.read_text().splitlines() if line)
    return {line["seed"] for line in lines if line["test"] == name}
