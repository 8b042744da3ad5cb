"""A number and an array that a child changes, and structures in shared memory."""

from ctypes import Structure, c_double
from multiprocessing import Lock, Process
from multiprocessing.sharedctypes import Array, RawArray, Value, copy


class Particle(Structure):
    _fields_ = [("position", c_double), ("speed", c_double)]


def advance(number, square, text, particles, kept):
    number.value **= 2
    square.value **= 2
    text.value = text.value.upper()
    for particle in particles:
        particle.position += particle.speed
    kept[:] = [-one for one in kept]


if __name__ == "__main__":
    lock = Lock()
    number = Value("i", 7)
    square = Value(c_double, 1.0 / 3.0, lock=False)
    text = Array("c", b"hello world", lock=lock)
    particles = Array(Particle, [(1.875, -6.25), (-5.75, 2.0), (2.375, 9.5)], lock=lock)
    kept = RawArray("h", range(5))
    before = copy(kept)

    process = Process(target=advance, args=(number, square, text, particles, kept))
    process.start()
    process.join()

    print(number.value)
    print(square.value)
    print(text.value)
    print([(one.position, one.speed) for one in particles])
    print(kept[:], before[:])
