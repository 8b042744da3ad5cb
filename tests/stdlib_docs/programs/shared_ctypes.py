"""Structures and arrays of ctypes that a child changes in place."""

from ctypes import Structure, c_double, c_short
from multiprocessing import Array, Lock, Process, RawArray, RawValue, Value
from multiprocessing.sharedctypes import copy, synchronized


class Position(Structure):
    _fields_ = [("east", c_double), ("north", c_double)]


def change(small, real, text, positions):
    small.value **= 2
    real.value /= 4
    text.value = text.value.upper()
    for position in positions:
        position.east += 1
        position.north *= position.north


def raise_all(raw, numbers):
    for i in range(len(numbers)):
        numbers[i] += raw.value


if __name__ == "__main__":
    lock = Lock()
    small = Value("h", 9)
    real = Value(c_double, 1.0, lock=False)
    text = Array("c", b"good morning", lock=lock)
    positions = Array(Position, [(1.5, -2.0), (0.5, 3.0), (2.25, 9.0)], lock=lock)
    process = Process(target=change, args=(small, real, text, positions))
    process.start()
    process.join()
    print(small.value, real.value, text.value)
    print([(position.east, position.north) for position in positions])

    raw, numbers = RawValue(c_short, 5), RawArray("d", [1, 2, 3])
    process = Process(target=raise_all, args=(raw, numbers))
    process.start()
    process.join()
    print(raw.value, list(numbers), numbers[1:], list(RawArray("i", 3)))
    private = copy(numbers)
    private[0] = 77
    print(private[0], numbers[0])
    guarded = synchronized(numbers)
    with guarded.get_lock():
        guarded[0] = 11
    print(numbers[0], guarded.get_obj()[0])
