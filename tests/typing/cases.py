"""What type checkers make of Fiber's names; checked by mypy, never run.

A ``type: ignore`` here is an error that users are told of: mypy complains where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent import futures

from typing_extensions import assert_type

import fiber
from fiber.executor import Future
from fiber.results import AsyncResult, IMapIterator, IMapUnorderedIterator, MapResult


def name(number: int) -> str:
    return str(number)


def add(number: int, other: float = 0.0) -> float:
    return number + other


def in_turn(lock: fiber.Lock, condition: fiber.Condition) -> None:
    with lock as is_held, condition as is_held_too:
        assert_type((is_held, is_held_too), tuple[bool, bool])


def nothing() -> None:
    pass


def note(value: str) -> None:
    pass


def note_error(error: BaseException) -> None:
    pass


def generic(value: float) -> list[float]:
    return [value]


def maps(pool: fiber.Pool) -> None:
    assert_type(pool.map(name, range(3)), list[str])
    assert_type(pool.map(name, [1, 2], chunksize=2), list[str])
    assert_type(pool.map(generic, [1, 2]), list[list[float]])
    assert_type(pool.map(lambda x: x * 2, [1, 2]), list[int])
    assert_type(pool.map_async(name, range(3)), MapResult[str])
    assert_type(pool.map_async(name, range(3)).get(), list[str])
    assert_type(pool.starmap(add, [(1, 2.0)]), list[float])
    assert_type(pool.starmap_async(add, [(1, 2.0)]), MapResult[float])
    assert_type(pool.imap(name, range(3)), IMapIterator[str])
    assert_type(pool.imap_unordered(name, range(3)), IMapUnorderedIterator[str])
    assert_type(next(pool.imap(name, range(3))), str)
    assert_type(pool.imap(name, range(3)).next(timeout=1.0), str)
    assert_type(list(pool.imap(name, range(3))), list[str])

    pool.map(name, ["a"])  # type: ignore[arg-type]
    pool.imap(name, ["a"])  # type: ignore[arg-type]
    pool.map(nothing, [1])  # type: ignore[arg-type]
    pool.map(name, 3)  # type: ignore[arg-type]


def applies(pool: fiber.Pool) -> None:
    assert_type(pool.apply(name, (1,)), str)
    assert_type(pool.apply(add, (1,)), float)
    assert_type(pool.apply(add, (1, 2.0)), float)
    assert_type(pool.apply(add, (1,), {"other": 2.0}), float)
    assert_type(pool.apply(add, kwds={"number": 1}), float)
    assert_type(pool.apply(add, [1, 2.0]), float)
    assert_type(pool.apply_async(name, (1,)), AsyncResult[str])
    assert_type(pool.apply_async(name, (1,)).get(timeout=1.0), str)
    assert_type(pool.apply_async(name, (1,), callback=note), AsyncResult[str])
    assert_type(pool.apply_async(name, (1,), {}, note, note_error), AsyncResult[str])

    pool.apply(name, ("a",))  # type: ignore[arg-type]
    pool.apply_async(name, (1, 2))  # type: ignore[arg-type]
    pool.apply_async(name, (1,), error_callback=note)  # type: ignore[arg-type]


def executors() -> None:
    with fiber.Executor(2) as executor:
        assert_type(executor.submit(name, 1), Future[str])
        assert_type(executor.submit(add, 1, other=2.0).result(), float)
        assert_type(executor.submit(name, 1).exception(), BaseException | None)
        assert_type(executor.map(name, range(3)), Iterator[str])
        standard: futures.Executor = executor
        future: futures.Future[str] = executor.submit(name, 1)
        futures.wait([future])
        standard.submit(name, 1)

        executor.submit(name, "a")  # type: ignore[arg-type]
        executor.submit(name)  # type: ignore[call-arg]
        executor.submit(add, 1, another=2.0)  # type: ignore[call-arg]


async def awaits(pool: fiber.Pool) -> None:
    assert_type(await pool.apply_async(name, (1,)), str)
    assert_type(await pool.map_async(name, range(3)), list[str])
    assert_type([x async for x in pool.imap(name, range(3))], list[str])
    assert_type(await asyncio.wait_for(pool.apply_async(name, (1,)), 1.0), str)


def queues() -> None:
    numbers: fiber.Queue[int] = fiber.Queue(maxsize=3)
    assert_type(numbers.get(timeout=1.0), int)
    assert_type(numbers.get_nowait(), int)
    simple: fiber.SimpleQueue[str] = fiber.SimpleQueue()
    assert_type(simple.get(), str)

    numbers.put("a")  # type: ignore[arg-type]
    simple.put(1)  # type: ignore[arg-type]


def processes() -> None:
    process = fiber.Process(target=name, args=(1,), name="it", daemon=True)
    process.start()
    process.join(1.0)
    assert_type(process.exitcode, int | None)
    assert_type(process.is_alive(), bool)

    fiber.Process(target=3)  # type: ignore[arg-type]


def shared_values() -> None:
    numbers = fiber.shared([1, 2])
    assert_type(numbers, fiber.Shared[list[int]])
    assert_type(numbers.value, list[int])
    numbers.value = [3]  # type: ignore[misc]
