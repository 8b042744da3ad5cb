"""Numbers, arrays and structures in shared memory, which children change in place."""

from ctypes import Structure, c_double
from multiprocessing import Array, Lock, Process, RawArray, RawValue, Value
from multiprocessing.sharedctypes import synchronized


class Position(Structure):
    _fields_ = [("east", c_double), ("north", c_double)]


def change(small, real, text, positions, raw, numbers):
    small.value **= 2
    real.value /= 4
    text.value = text.value.upper()
    for position in positions:
        position.east += 1
        position.north *= position.north
    for i in range(len(numbers)):
        numbers[i] += raw.value


def fails(call, *args):
    try:
        call(*args)
    except (AssertionError, AttributeError, IndexError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    lock = Lock()
    small = Value("h", 9)
    real = Value(c_double, 1.0, lock=False)
    text = Array("c", b"good morning", lock=lock)
    positions = Array(Position, [(1.5, -2.0), (0.5, 3.0), (2.25, 9.0)], lock=lock)
    raw, numbers = RawValue("h", 5), RawArray("d", [1, 2, 3])
    process = Process(target=change, args=(small, real, text, positions, raw, numbers))
    process.start()
    process.join()
    print(small.value, real.value, text.value, text[2:5], len(text))
    print([(position.east, position.north) for position in positions])
    print(raw.value, list(numbers), numbers[1:], list(RawArray("i", 3)))

    guarded = synchronized(numbers)
    with guarded.get_lock():
        guarded[0] = 11
    print(numbers[0], guarded.get_obj()[0])
    fails(guarded.__setitem__, 3, 1)
    fails(synchronized, guarded)
    fails(RawArray, "i", -1)
    print(synchronized(RawValue("d", 1.5)))
    for make in (Value, Array):
        print(make("i", 2, lock=lock).get_lock() is lock)
        print(type(make("i", 2, lock=False)).__name__)
        fails(lambda make=make: make("i", 1, lock="notalock"))
