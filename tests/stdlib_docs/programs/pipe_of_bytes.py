"""Bytes over a pipe: parts of a buffer, into an array, and a buffer that is too short."""

from array import array
from multiprocessing import BufferTooShort, Pipe

if __name__ == "__main__":
    left, right = Pipe()
    left.send([2.5, "text", None])
    print(right.recv())
    right.send_bytes(b"many thanks")
    print(left.poll(), left.recv_bytes())
    print(left.poll(), left.poll(0.01))

    numbers = array("h", range(3, 9))
    space = array("h", [0] * 10)
    left.send_bytes(numbers)
    count = right.recv_bytes_into(space)
    print(count == len(numbers) * numbers.itemsize, space)

    left.send_bytes(b"0123456789", 4, 3)
    print(right.recv_bytes())
    left.send_bytes(b"longer than the buffer")
    try:
        right.recv_bytes_into(bytearray(6))
    except BufferTooShort as error:
        print("BufferTooShort:", error.args[0])
    with left, right:
        print(left.closed, right.closed)
    print(left.closed, right.closed)
    try:
        left.send(1)
    except OSError as error:
        print("OSError:", error)
