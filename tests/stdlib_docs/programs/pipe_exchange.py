"""A conversation over a pipe, and one that goes one way only."""

from multiprocessing import Pipe, Process


def answer(connection):
    question = connection.recv()
    connection.send([question, 12, None])
    connection.close()


if __name__ == "__main__":
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
    try:
        writer.recv()
    except OSError as error:
        print("OSError:", error)
