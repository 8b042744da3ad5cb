"""The readers of several pipes, waited for together until all of them have ended."""

import time
from multiprocessing import Pipe, Process, current_process
from multiprocessing.connection import wait


def tell(writer, count):
    with writer:
        for i in range(count):
            writer.send((i, current_process().name))
            time.sleep(0.001)


if __name__ == "__main__":
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
