#!/usr/bin/env python3
"""Start a process, wait for it, look at how it ended."""

import fiber as mp


def hello(name: str) -> None:
    print(f"hello, {name}; this is {mp.current_process().name}")


if __name__ == "__main__":
    process = mp.Process(target=hello, args=("world",))
    process.start()
    process.join()
    print(f"{process.name} ended with exit code {process.exitcode}")
