"""A listener with a key, its clients, and one who does not know the key."""

from array import array
from multiprocessing import AuthenticationError, Process, Queue
from multiprocessing.connection import Client, Listener

KEY = b"between us"


def serve(addresses, told):
    with Listener(("localhost", 0), authkey=KEY) as listener:
        addresses.put(listener.address)
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


def be_a_stranger(addresses, told):
    try:
        Client(addresses.get(), authkey=b"a guess")
    except AuthenticationError:
        told.put("the stranger was refused")


if __name__ == "__main__":
    addresses, told = Queue(), Queue()
    server = Process(target=serve, args=(addresses, told))
    server.start()
    stranger = Process(target=be_a_stranger, args=(addresses, told))
    stranger.start()
    print(told.get())
    stranger.join()
    with Client(addresses.get(), authkey=KEY) as connection:
        print(connection.recv())
        print(connection.recv_bytes())
        space = array("i", [0] * 4)
        print(connection.recv_bytes_into(space), space)
        connection.send("thank you")
        print(told.get(), told.get())
    print(told.get())
    server.join()
    print(server.exitcode, stranger.exitcode)
