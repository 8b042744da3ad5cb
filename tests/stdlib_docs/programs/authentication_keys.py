"""The key that a process proves itself by, which its children inherit."""

import pickle
from multiprocessing import Pipe, Process, current_process


def compare(connection):
    connection.send(current_process().authkey == connection.recv())


if __name__ == "__main__":
    key = current_process().authkey
    print(type(key).__name__, isinstance(key, bytes), len(key) >= 32)
    for chosen in (bytes(key), b"another key"):
        current_process().authkey = chosen
        ours, theirs = Pipe()
        process = Process(target=compare, args=(theirs,))
        process.start()
        ours.send(bytes(chosen))
        print(ours.recv(), process.authkey == chosen)
        process.join()
    try:
        pickle.dumps(current_process().authkey)
    except TypeError as error:
        print("TypeError:", error)
