"""What workers are given to do; nothing heavy is imported here."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import Any

#: how often this process has unpickled a cargo
_unpickled = 0


def noop(item: Any) -> Any:
    return item


def noop_too(item: Any) -> Any:
    return item


def sleep(seconds: float) -> None:
    time.sleep(seconds)


class Cargo:
    """Carries something big, and counts in each process how often it arrived."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        return _unload, (self.content,)


def _unload(content: Any) -> Cargo:
    global _unpickled  # noqa: PLW0603 - a count a process is what is measured
    _unpickled += 1
    return Cargo(content)


def weigh(cargo: Cargo, item: int) -> tuple[int, int, int]:
    """Who did it, how often the cargo has arrived there, and something read from its end."""
    # long enough for every worker to take part
    time.sleep(0.02)
    return os.getpid(), _unpickled, int(cargo.content[-1]) + item


def write(items: Any, ready: Any, go: Any, count: int) -> None:
    ready.put(None)
    go.get()
    for number in range(count):
        items.put(number)
    items.put(None)


def read(items: Any, ready: Any, go: Any, done: Any) -> None:
    ready.put(None)
    go.get()
    count = 0
    while items.get() is not None:
        count += 1
    done.put(count)


def read_last(array: Any, item: int) -> tuple[int, int]:
    """Who did it, and something read from the end of an array."""
    # long enough for every worker to take part
    time.sleep(0.02)
    return os.getpid(), int(array[-1]) + item


def read_shared(handle: Any, item: int) -> tuple[int, int]:
    """The same of an array that is shared."""
    return read_last(handle.value, item)


def echo(end: Any) -> None:
    """Give back what comes until nothing does."""
    while (item := end.recv()) is not None:
        end.send(item)


def pass_on(given: Any, returned: Any) -> None:
    """The same from a queue to another one."""
    while (item := given.get()) is not None:
        returned.put(item)


def ask(given: Any, returned: Any, count: int, done: Any = None) -> float:
    """Ask what runs :func:`pass_on` for so many items, one at a time; the seconds for one, put into ``done`` too."""
    # both are up, and the queues know who writes and who reads
    for number in range(max(1, count // 10)):
        given.put(number)
        returned.get()
    start = time.perf_counter()
    for number in range(count):
        given.put(number)
        returned.get()
    each = (time.perf_counter() - start) / count
    if done is not None:
        done.put(each)
    return each


def echo_bare(url: str, credentials: Any) -> None:
    """The same over a socket of pynng."""
    import pynng

    from fiber._wire.nng import tls

    with pynng.Pair0() as end:
        end.recv_max_size = 0
        end.tls_config = tls(credentials, pynng.TLSConfig.MODE_CLIENT)
        end.dial(url)
        end.send(b"up")
        while (item := pickle.loads(end.recv())) is not None:
            end.send(pickle.dumps(item))


def act(end: Any, seed: int) -> None:
    """An environment that is asked for a step at a time, and begins anew where it has ended."""
    import gymnasium

    environment: Any = gymnasium.make("CartPole-v1")
    end.send(environment.reset(seed=seed))
    while (asked := end.recv())[0] == "step":
        observation, reward, terminated, truncated, info = environment.step(asked[1])
        if terminated or truncated:
            observation, info = environment.reset()
        end.send((observation, reward, terminated or truncated, info))


def repeat(end: Any, action: Callable[..., Any], *arguments: Any) -> None:
    """Do something as often as is asked through a pipe, and answer with the seconds that it took."""
    while (count := end.recv()) is not None:
        start = time.perf_counter()
        for _ in range(count):
            action(*arguments)
        end.send(time.perf_counter() - start)


def take(lock: Any) -> None:
    with lock:
        pass


def add(value: Any) -> None:
    with value.get_lock():
        value.value += 1


def notify(condition: Any) -> None:
    with condition:
        condition.notify()


def take_turn(condition: Any, turn: Any, number: int) -> None:
    """Wait for a turn of two, and give it to the other one."""
    with condition:
        while turn.value != number:
            condition.wait()
        turn.value = 1 - number
        condition.notify()


def answer(heard: Any, said: Any) -> None:
    heard.wait()
    heard.clear()
    said.set()


def meet(barrier: Any) -> None:
    barrier.wait()


def assign(mapping: Any) -> None:
    mapping["key"] = 1


def write_and_stay(items: Any, ready: Any, go: Any, count: int) -> None:
    write(items, ready, go, count)
    go.get()
