"""Managers: dictionaries, lists and namespaces that all processes see, proxies within proxies."""

# ruff: noqa: D103  a program of a user, told by its first sentence

from typing import Any

import fiber
from fiber.testing.apps import begin


def write(shared: Any, numbers: Any, names: Any, key: str) -> None:
    shared[key] = len(key)
    numbers.append(len(key))
    names.last = key
    shared["inner"].append(key)


def main() -> None:
    begin()
    with fiber.Manager() as manager:
        shared, numbers, names = manager.dict(), manager.list(), manager.Namespace()
        shared["inner"] = manager.list()
        for key in ("a", "bb", "ccc"):
            process = fiber.Process(target=write, args=(shared, numbers, names, key))
            process.start()
            process.join()
            assert process.exitcode == 0
        assert (shared["a"], shared["bb"], shared["ccc"]) == (1, 2, 3)
        assert list(numbers) == [1, 2, 3]
        assert names.last == "ccc"
        assert list(shared["inner"]) == ["a", "bb", "ccc"]


if __name__ == "__main__":
    main()
