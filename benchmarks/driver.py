"""Runs the rounds of one contender at one row, in a program of its own, when it is told to.

``python -m benchmarks.driver ROW CONTENDER SIZES ADDRESS`` tells its process id at a Unix socket, reads a
line for each round from it and answers with a line of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys

from benchmarks import rows
from benchmarks.model import Sizes


def main() -> None:
    faulthandler.enable()
    name, contender, sizes, address = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with (
            connection.makefile("rw") as caller,
            rows.load(name).prepare(contender, Sizes(*json.loads(sizes))) as once,
        ):
            print(os.getpid(), file=caller, flush=True)
            while caller.readline():
                print(json.dumps(once()), file=caller, flush=True)


if __name__ == "__main__":
    main()
