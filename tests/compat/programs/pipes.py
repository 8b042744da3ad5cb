"""Pipes: conversations, bytes and parts of buffers, and the ends of several waited for together."""

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
    try:
        ours.recv()
    except EOFError:
        print("nobody is there any more")

    reader, writer = Pipe(duplex=False)
    print(reader.readable, reader.writable, writer.readable, writer.writable)
    writer.send(1)
    print(reader.recv())
    fails(lambda: reader.send(1))
    fails(writer.recv)
    fails(writer.poll)


def fails(call):
    try:
        call()
    except (OSError, BufferTooShort) as error:
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
    print(right.recv_bytes())
    left.send_bytes(b"longer than the buffer")
    fails(lambda: right.recv_bytes_into(bytearray(6)))
    with left, right:
        print(left.closed, right.closed)
    print(left.closed, right.closed)
    fails(lambda: left.send(1))


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
    reader, writer = Pipe(duplex=False)
    print(wait([reader], timeout=0), end=" ")
    writer.send("now")
    print(wait([reader]) == [reader])


if __name__ == "__main__":
    converse()
    send_bytes()
    wait_for_several()
