"""Tasks of pools in tests, in a module that a fresh worker imports in no time."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_state: list[int] = []


def same(x: Any) -> Any:
    """Its argument."""
    return x


def square(x: Any) -> Any:
    """Its argument times itself."""
    return x * x


def work(n: int) -> int:
    """About 20 µs, so that a map of many takes long enough to be hit several times."""
    for _ in range(200):
        pass
    return (n * 2654435761) % 2**32


def pid(_: Any = None) -> int:
    """The worker that ran it."""
    return os.getpid()


def nap(seconds: float) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


def nap_and_tell(seconds: float) -> int:
    """Sleep; the worker that ran it."""
    time.sleep(seconds)
    return os.getpid()


def tell_and_wait(told: Any) -> None:
    """Put its process into a queue, and wait for a signal."""
    told.put(os.getpid())
    signal.pause()


def note(path: str, number: int) -> int:
    """Append the number to a file: each line is one execution."""
    # opened for appending, a short write is whole
    with open(path, "a") as stream:
        stream.write(f"{number}\n")
    return number


def note_and_nap(path: str, number: int, seconds: float) -> int:
    """The same, and sleep."""
    note(path, number)
    time.sleep(seconds)
    return number


def note_and_die(path: str, number: int, bad: int) -> int:
    """The same; at the bad number its worker dies."""
    note(path, number)
    if number == bad:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return number


def die_at(number: int, bad: int) -> int:
    """Its number; at the bad one its worker dies."""
    if number == bad:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return number


def die_once(path: str) -> str:
    """Kill its worker at the first call, which creates the file, and work at the next."""
    try:
        with open(path, "x"):
            pass
    except FileExistsError:
        return "survived"
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return "never"


def executions(path: Path) -> list[int]:
    """Which numbers were noted, in order."""
    with contextlib.suppress(FileNotFoundError):
        return [int(line) for line in path.read_text().split()]
    return []


def raise_it(kind: type[BaseException]) -> None:
    """Raise."""
    raise kind("on purpose")


def leave(code: int) -> None:
    """End the worker as a program ends."""
    sys.exit(code)


def refuse_to_start() -> None:
    """An initializer that fails."""
    raise RuntimeError("initializer on purpose")


def keep(value: int) -> None:
    """An initializer that sets what :func:`kept` returns."""
    _state[:] = [value]


def kept(_: Any = None) -> list[int]:
    """What the initializer of its worker has set."""
    return _state


def count_up(_: Any = None) -> int:
    """How often it was called in its worker."""
    _state.append(1)
    return len(_state)


class Refuses:
    """Cannot be unpickled where it arrives."""

    def __init__(self, *, exits: bool = False) -> None:
        self.exits = exits

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["exits"]:
            sys.exit(3)
        raise ValueError("refuses to be read")

    def __getstate__(self) -> dict[str, Any]:
        return {"exits": self.exits}


def fail_at(number: int, bad: int) -> int:
    """Raise at the bad number."""
    if number == bad:
        raise ValueError(f"bad {number}")
    return number
