"""Pipes: conversations, bytes and parts of buffers, and the ends of several waited for together."""

import pickle
import threading
from array import array
from multiprocessing import BufferTooShort, Pipe, Process, current_process
from multiprocessing.connection import wait


def answer(connection):
    question = connection.recv()
    connection.send([question, 12, None])
    connection.close()


def converse():
    ours, theirs = Pipe()
    process = Process(target=answer, args=(theirs,))
    process.start()
    theirs.close()
    ours.send("how many?")
    print(ours.recv())
    process.join()

    reader, writer = Pipe(duplex=False)
    fails(reader.send, 1)
    fails(writer.recv)
    fails(writer.poll)
    fails(writer.send, threading.Lock())


def fails(call, *args):
    try:
        call(*args)
    except (OSError, TypeError, ValueError, BufferTooShort) as error:
        print(f"{type(error).__name__}: {error.args[0]}")


def send_bytes():
    left, right = Pipe()
    right.send_bytes(b"many thanks")
    print(left.poll(), left.recv_bytes())
    print(left.poll(), left.poll(0.01))

    numbers = array("h", range(3, 9))
    space = array("h", [0] * 10)
    left.send_bytes(numbers)
    count = right.recv_bytes_into(space)
    print(count == len(numbers) * numbers.itemsize, space)

    left.send_bytes(b"0123456789", 4, 3)
    left.send_bytes(memoryview(b"0123456789"), 8)
    left.send_bytes(b"")
    print(right.poll(None), right.recv_bytes(), right.recv_bytes(), right.recv_bytes())
    left.send_bytes(numbers)
    print(right.recv_bytes_into(space, 4), space)
    left.send_bytes(b"longer than the buffer")
    fails(right.recv_bytes_into, bytearray(6))
    left.send({"a": 1})
    right.send_bytes(pickle.dumps(None))
    print(pickle.loads(right.recv_bytes()), left.recv())
    for part in ((-1,), (4,), (0, -1), (2, 2)):
        fails(left.send_bytes, b"abc", *part)
    for offset in (-1, 11):
        fails(left.recv_bytes_into, bytearray(10), offset)
    fails(left.recv_bytes, -1)
    left.send_bytes(b"abcdef")
    fails(right.recv_bytes, 5)
    right.send("goes on")
    print(right.readable, left.recv())
    with left, right:
        print(left.closed, right.closed)
    print(left.closed, right.closed)
    fails(left.send, 1)


def tell(writer, count):
    with writer:
        for i in range(count):
            writer.send((i, current_process().name))


def wait_for_several():
    readers, heard, children = [], {}, []
    for number in range(3):
        reader, writer = Pipe(duplex=False)
        readers.append(reader)
        child = Process(target=tell, name=f"teller {number}", args=(writer, 4 + number))
        child.start()
        children.append(child)
        # this copy is closed, so that the child's is the only one, and its end is seen
        writer.close()
    while readers:
        for reader in wait(readers):
            try:
                number, name = reader.recv()
            except EOFError:
                reader.close()
                readers.remove(reader)
            else:
                heard.setdefault(name, []).append(number)
    for name in sorted(heard):
        print(name, heard[name])

    left = {child.sentinel: child for child in children}
    while left:
        for sentinel in wait(list(left)):
            left.pop(sentinel).join()
    print([child.exitcode for child in children])


if __name__ == "__main__":
    converse()
    send_bytes()
    wait_for_several()
