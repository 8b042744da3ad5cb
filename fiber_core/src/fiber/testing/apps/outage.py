"""An unavailable platform: a map and a process wait for it, and go on."""

# ruff: noqa: D103  a program of a user, told by its first sentence

import os
import signal
import threading
import time
from typing import Any

import fiber
from fiber._runtime import runtime
from fiber.exceptions import BackendUnavailableError
from fiber.testing.apps import begin, print_facts


def square(number: int) -> int:
    return number * number


def die_once(died: Any) -> str:
    if not died.is_set():
        died.set()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def is_away() -> bool:
    current = runtime.current()
    try:
        current.backend.list(current.run_id)
    except BackendUnavailableError:
        return True
    return False


def wait_until(away: bool) -> None:
    deadline = time.monotonic() + 60
    while is_away() is not away:
        assert time.monotonic() < deadline
        # no platform tells when it cannot be asked
        time.sleep(0.05)


def main() -> None:
    begin()
    died = fiber.Event()
    with fiber.Pool(1) as pool:
        assert pool.map(square, range(10)) == [n * n for n in range(10)]
        print_facts(ready=True)
        wait_until(away=True)
        # where the worker has not ended with the platform it does now, and none can be started
        hit = pool.apply_async(die_once, (died,))
        results = pool.map_async(square, range(500))
        process = fiber.Process(target=square, args=(3,))
        starter = threading.Thread(target=process.start)
        starter.start()
        starter.join(1)
        assert starter.is_alive(), "a process does not wait for the platform"
        assert not results.ready(), "a map does not wait for the platform"
        print_facts(waiting=True)
        wait_until(away=False)
        since = time.monotonic()
        assert results.get(60) == [n * n for n in range(500)]
        assert hit.get(60) == "done"
        starter.join(60)
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        print_facts(
            measured={"seconds from a platform's return to all work done": time.monotonic() - since}
        )


if __name__ == "__main__":
    main()
