"""Who listens at an address, and a manager there, is used by those who know the key."""

import pickle
import queue
from array import array
from multiprocessing import AuthenticationError, Pipe, Process, Queue, current_process
from multiprocessing.connection import Client, Listener
from multiprocessing.managers import BaseManager

KEY = b"between us"


def start(target, *args):
    process = Process(target=target, args=args)
    process.start()
    return process


def compare(connection):
    connection.send(current_process().authkey == connection.recv())


def inherit_keys():
    key = current_process().authkey
    print(type(key).__name__, isinstance(key, bytes), len(key) >= 32)
    for chosen in (bytes(key), b"another key"):
        current_process().authkey = chosen
        ours, theirs = Pipe()
        process = start(compare, theirs)
        ours.send(bytes(chosen))
        print(ours.recv(), process.authkey == chosen)
        process.join()
    try:
        pickle.dumps(current_process().authkey)
    except TypeError as error:
        print("TypeError:", error)


def be_a_stranger(connect, address, told):
    try:
        connect(address, b"a guess")
    except AuthenticationError:
        told.put("the stranger was refused")


def listen(addresses, told):
    with Listener(("localhost", 0), authkey=KEY) as listener:
        addresses.put(listener.address)
        while True:
            try:
                connection = listener.accept()
            except AuthenticationError:
                # a stranger: the next one, please
                continue
            break
        with connection:
            told.put(("accepted from", listener.last_accepted[0]))
            connection.send([3.25, None, "decimal", {"a": 1}])
            connection.send_bytes(b"some bytes")
            connection.send_bytes(array("i", [55, 1918]))
            told.put(("heard", connection.recv()))
    try:
        listener.accept()
    except OSError as error:
        told.put(("OSError", str(error)))


def dial(address, key):
    return Client(address, authkey=key)


def connect_to_a_listener(addresses, told):
    server = start(listen, addresses, told)
    address = addresses.get()
    stranger = start(be_a_stranger, dial, address, told)
    print(told.get())
    stranger.join()
    with dial(address, KEY) as connection:
        print(connection.recv())
        print(connection.recv_bytes())
        space = array("i", [0] * 4)
        print(connection.recv_bytes_into(space), space)
        connection.send("thank you")
        print(told.get(), told.get())
    print(told.get())
    server.join()
    print(server.exitcode, stranger.exitcode)


class Shared(BaseManager):
    pass


tasks = queue.Queue()


def serve(addresses):
    Shared.register("get_tasks", callable=lambda: tasks)
    server = Shared(address=("127.0.0.1", 0), authkey=KEY).get_server()
    addresses.put(server.address)
    server.serve_forever()


def connect(address, key):
    Shared.register("get_tasks")
    manager = Shared(address=address, authkey=key)
    manager.connect()
    return manager.get_tasks()


def produce(address):
    remote = connect(address, KEY)
    for word in ("one", "two", "three"):
        remote.put(word)


def connect_to_a_manager(addresses, told):
    server = start(serve, addresses)
    address = addresses.get()
    producer = start(produce, address)
    remote = connect(address, KEY)
    print([remote.get() for _ in range(3)], remote.empty())
    producer.join()
    stranger = start(be_a_stranger, connect, address, told)
    print(told.get())
    stranger.join()
    print(producer.exitcode, stranger.exitcode, server.is_alive())
    server.terminate()
    server.join()


if __name__ == "__main__":
    addresses, told = Queue(), Queue()
    connect_to_a_listener(addresses, told)
    connect_to_a_manager(addresses, told)
    inherit_keys()
