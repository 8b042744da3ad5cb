"""A manager of one program, used by another that knows its address and authkey."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from multiprocessing import AuthenticationError

import pytest

import fiber
from fiber.managers import BaseManager, SyncManager

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]

OTHER = """
import json, os, sys
import fiber
from fiber.managers import BaseManager, ListProxy

class Store(BaseManager):
    pass

Store.register("table")
Store.register("numbers", proxytype=ListProxy)
Store.register("queue")

def work(table, numbers, queue):
    table.update({"child": os.getpid()})
    numbers.append(3)
    queue.put(numbers)

if __name__ == "__main__":
    address, key = json.loads(sys.argv[1])
    store = Store(tuple(address) if isinstance(address, list) else address, key.encode())
    store.connect()
    table, numbers, queue = store.table(), store.numbers(), store.queue()
    table.update({"other": os.getpid()})
    numbers.append(2)
    child = fiber.Process(target=work, args=(table, numbers, queue))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert list(queue.get()) == [1, 2, 3]
    table.update({"ours": fiber.Queue()})
    own = table.get("ours")
    own.put("put by its maker")
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.stdin.read()
"""

SERVER = """
import sys
from fiber.managers import BaseManager, ListProxy

class Store(BaseManager):
    pass

numbers = [1]
Store.register("numbers", lambda: numbers, ListProxy)

if __name__ == "__main__":
    server = Store(("127.0.0.1", 0), b"abracadabra").get_server()
    print(server.address[1], flush=True)
    server.serve_forever()
"""

table, numbers = {}, [1]


class Store(BaseManager):
    pass


def the_table():
    return table


def the_numbers():
    return numbers


Store.register("table", the_table, exposed=("update", "get", "copy"))
Store.register("numbers", the_numbers, fiber.managers.ListProxy)
Store.register("queue", queue.Queue)


@pytest.fixture(params=["AF_INET", "AF_UNIX"])
def address(request, tmp_path):
    return ("127.0.0.1", 0) if request.param == "AF_INET" else str(tmp_path / "manager")


def test_two_programs_share_objects(tmp_path, address):
    script = tmp_path / "other.py"
    script.write_text(OTHER)
    with Store(address, b"abracadabra") as store:
        known = json.dumps([store.address, "abracadabra"])
        with subprocess.Popen(
            [sys.executable, script, known],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            told = json.loads(other.stdout.readline())
            found = store.table().copy()
            assert list(store.numbers()) == [1, 2, 3]
            assert found["other"] == told["pid"] != found["child"] != os.getpid()
            # it lives in the other program
            assert found["ours"].get(timeout=60) == "put by its maker"
            other.stdin.close()
        assert other.returncode == 0


def test_whoever_has_another_key_is_refused(address):
    with Store(address, b"abracadabra") as store:
        with pytest.raises(AuthenticationError):
            Store(store.address, b"open sesame").connect()
        again = Store(store.address, b"abracadabra")
        again.connect()
        assert list(again.numbers()) == [1]


def test_where_nobody_serves_it_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        Store(str(tmp_path / "nobody"), b"abracadabra").connect()


def test_a_program_may_be_a_server_and_nothing_else(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
        port = int(server.stdout.readline())
        store = Store(("127.0.0.1", port), b"abracadabra")
        store.connect()
        shared = store.numbers()
        shared.append(2)
        assert list(shared) == [1, 2]
        server.send_signal(signal.SIGINT)
    assert server.returncode == 0
    with pytest.raises((EOFError, ConnectionError)):
        shared.append(3)


def test_one_that_was_shut_down_can_be_started_again_at_its_address():
    first = SyncManager(("127.0.0.1", 0), b"abracadabra")
    first.start()
    numbers = first.list()
    first.shutdown()
    with SyncManager(first.address, b"abracadabra") as second:
        assert second.list([1]).pop() == 1
        with pytest.raises((EOFError, ConnectionError)):
            numbers.append(1)
