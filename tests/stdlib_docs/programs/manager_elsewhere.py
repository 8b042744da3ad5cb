"""A manager at an address: served by one process, used by two others that know its key."""

import queue
from multiprocessing import AuthenticationError, Process, Queue
from multiprocessing.managers import BaseManager

KEY = b"open sesame"


class Shared(BaseManager):
    pass


tasks = queue.Queue()


def serve(addresses):
    Shared.register("get_tasks", callable=lambda: tasks)
    manager = Shared(address=("127.0.0.1", 0), authkey=KEY)
    server = manager.get_server()
    addresses.put(server.address)
    server.serve_forever()


def connect(address, key=KEY):
    Shared.register("get_tasks")
    manager = Shared(address=address, authkey=key)
    manager.connect()
    return manager


def produce(address):
    remote = connect(address).get_tasks()
    for word in ("one", "two", "three"):
        remote.put(word)


def try_wrong_key(address, results):
    try:
        connect(address, b"open barley").get_tasks()
    except AuthenticationError:
        results.put("AuthenticationError")


if __name__ == "__main__":
    addresses, results = Queue(), Queue()
    server = Process(target=serve, args=(addresses,))
    server.start()
    address = addresses.get()
    producer = Process(target=produce, args=(address,))
    producer.start()
    remote = connect(address).get_tasks()
    print([remote.get() for _ in range(3)], remote.empty())
    producer.join()

    stranger = Process(target=try_wrong_key, args=(address, results))
    stranger.start()
    print(results.get())
    stranger.join()
    print(producer.exitcode, stranger.exitcode, server.is_alive())
    server.terminate()
    server.join()
