"""Runs the rounds of one contender at one row, in a program of its own, when it is told to.

``python -m benchmarks.driver ROW CONTENDER SIZES`` reads a line for each round and answers with a
line of JSON. What frameworks print goes to the standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys

from benchmarks import rows
from benchmarks.model import Sizes


def main() -> None:
    faulthandler.enable()
    name, contender, sizes = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with rows.load(name).prepare(contender, Sizes(*json.loads(sizes))) as once:
        print("ready", file=answers, flush=True)
        while sys.stdin.readline():
            print(json.dumps(once()), file=answers, flush=True)


if __name__ == "__main__":
    main()
