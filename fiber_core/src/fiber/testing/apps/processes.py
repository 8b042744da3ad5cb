"""Processes: start, join, exit codes, signals, names, children of children."""

# ruff: noqa: D101, D102, D103  a program of a user, told by its first sentence

import os
import signal
import sys

import fiber
from fiber.testing.apps import begin


def exit_with(code: int) -> None:
    sys.exit(code)


def fail() -> None:
    msg = "on purpose"
    raise ValueError(msg)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    signal.pause()


def parent() -> None:
    child = fiber.Process(target=exit_with, args=(3,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


class Subclassed(fiber.Process):
    def run(self) -> None:
        sys.exit(6 if fiber.current_process().name == "by name" else 1)


def code_of(process: fiber.Process) -> int | None:
    process.start()
    assert process.is_alive() or process.exitcode is not None
    process.join()
    return process.exitcode


def main() -> None:
    begin()
    assert code_of(fiber.Process(target=exit_with, args=(0,))) == 0
    assert code_of(fiber.Process(target=exit_with, kwargs={"code": 7})) == 7
    assert code_of(fiber.Process(target=fail)) == 1
    assert code_of(fiber.Process(target=die)) == -signal.SIGKILL
    assert code_of(fiber.Process(target=parent)) == 3
    assert code_of(Subclassed(name="by name")) == 6

    several = [fiber.Process(target=exit_with, args=(code,)) for code in range(4)]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 1, 2, 3]

    for end, code in ((fiber.Process.terminate, -signal.SIGTERM), (fiber.Process.kill, -9)):
        process = fiber.Process(target=wait_for_ever)
        process.start()
        assert process.pid
        end(process)
        process.join()
        assert process.exitcode == code, process.exitcode
    assert fiber.active_children() == []


if __name__ == "__main__":
    main()
