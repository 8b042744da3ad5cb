"""Pools: results in order, exceptions, initializers, closures, callbacks."""

# ruff: noqa: D103, PT017  a program of a user, told by its first sentence

import functools
from typing import Any

import fiber
from fiber.testing.apps import begin

state = {"base": 0}


class OwnError(Exception):
    """An exception that only this program has."""


def square(number: int) -> int:
    return number * number


def add(one: int, other: int) -> int:
    return one + other


def set_base(base: int) -> None:
    state["base"] = base


def plus_base(number: int) -> int:
    return state["base"] + number


def fail(number: int) -> None:
    raise OwnError(number)


def main() -> None:
    begin()
    heard: list[Any] = []
    big = bytes(range(256)) * 4096
    with fiber.Pool(3, initializer=set_base, initargs=(100,)) as pool:
        assert pool.map(square, range(200)) == [n * n for n in range(200)]
        assert pool.map(square, range(50), chunksize=7) == [n * n for n in range(50)]
        assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
        assert pool.map(plus_base, range(5)) == [100, 101, 102, 103, 104]
        assert sorted(pool.imap_unordered(square, range(20))) == [n * n for n in range(20)]
        assert list(pool.imap(functools.partial(add, 5), range(5))) == [5, 6, 7, 8, 9]
        assert pool.apply(lambda data: data[::-1], (big,)) == big[::-1]
        pool.apply_async(square, (9,), callback=heard.append).get()
        try:
            pool.map(fail, [1])
        except OwnError as error:
            assert error.args == (1,)
            assert "fail" in str(error.__cause__)
        else:
            raise AssertionError
    assert heard == [81]


if __name__ == "__main__":
    main()
