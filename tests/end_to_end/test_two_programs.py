"""Two programs, started apart, that share an address and an authkey and nothing else."""

import functools
import signal
import textwrap

import pytest

import running
from fiber._agent import rundir
from fiber.managers import SyncManager
from making import making
from waiting import PATIENCE

#: what both programs begin with; the port or path comes by standard output of the first
HEAD = """
import os, pickle, queue, sys
from multiprocessing import AuthenticationError, current_process
import fiber
from fiber.connection import Client, Listener, wait
from fiber.managers import BaseManager, ListProxy

KEY = b"known to both"

def address():
    return ("127.0.0.1", int(sys.argv[1])) if sys.argv[1].isdigit() else sys.argv[1]

def tell(where):
    print(where[1] if isinstance(where, tuple) else where, flush=True)

def listen():
    listener = Listener(address(), authkey=KEY)
    tell(listener.address)
    return listener

def dial():
    return Client(address(), authkey=KEY)

def start(target, *args):
    child = fiber.Process(target=target, args=args)
    child.start()
    return child

class Store(BaseManager):
    pass
"""


class Program(running.Program):
    """One program that runs."""

    def __init__(self, folder, body, *arguments):
        text = f"{HEAD}\n{textwrap.dedent(body)}\nif __name__ == '__main__':\n    main()\n"
        path = folder / f"program{len(list(folder.glob('program*.py')))}.py"
        path.write_text(text)
        super().__init__(folder, str(path), *map(str, arguments), environ={})

    def ends(self):
        """Wait for its end; what it printed."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return out.split()


@pytest.fixture
def program(tmp_path):
    with making(functools.partial(Program, tmp_path), Program.close) as start:
        yield start
    # as the next program would: those that were killed left theirs
    rundir.sweep()


@pytest.fixture(params=["AF_UNIX", "AF_INET"])
def place(request, tmp_path):
    """What is given to the first program."""
    return 0 if request.param == "AF_INET" else str(tmp_path / "meeting")


def test_who_knows_the_key_is_connected_and_values_queues_and_pipes_travel(program, place):
    first = program(
        """
        def serve(end):
            while (value := end.recv()) is not None:
                end.send(value)
            tasks = fiber.Queue()
            end.send(tasks)
            results = end.recv()
            results.put(tasks.get() * 2)
            inner, outer = fiber.Pipe()
            end.send(outer)
            outer.close()
            print(inner.recv())
            try:
                end.recv()
            except EOFError:
                print("over", flush=True)

        def main():
            with listen() as listener:
                end = listener.accept()
                # a child uses it as the program would
                child = start(serve, end)
                end.close()
                child.join()
        """,
        place,
    )
    second = program(
        """
        def ask(end, answers):
            for value in (0, {"a": [1]}, "x" * 10, bytes(20_000_000), lambda x: x + 1):
                end.send(value)
                back = end.recv()
                assert back(1) == 2 if callable(back) else back == value
            assert wait([end], 0) == []
            end.send(None)
            tasks, results = end.recv(), fiber.Queue()
            tasks.put(21)
            end.send(results)
            answers.put(results.get(timeout=30))
            end.recv().send("inner")

        def main():
            answers = fiber.Queue()
            with dial() as end:
                child = start(ask, end, answers)
            print(answers.get(timeout=30))
            child.join()
        """,
        first.line(),
    )
    assert second.ends() == ["42"]
    assert first.ends() == ["inner", "over"]


@pytest.mark.parametrize("dies", ["listener", "client"])
def test_the_death_of_a_program_is_the_end_of_its_connections(program, place, dies):
    waits = """
        def main():
            with {} as end:
                end.send("here")
                print(end.recv(), flush=True)
                try:
                    end.recv()
                except EOFError:
                    print("gone")
        """
    first = program(waits.format("listen().accept()"), place)
    second = program(waits.format("dial()"), first.line())
    assert first.line() == second.line() == "here"
    dead, other = (first, second) if dies == "listener" else (second, first)
    dead.process.kill()
    assert other.ends() == ["gone"]


def test_a_handle_that_a_program_pickled_itself_needs_the_authkey(program, place):
    first = program(
        """
        def main():
            with listen() as listener, listener.accept() as end:
                queue = fiber.Queue()
                end.send(queue)
                print(queue.get(), flush=True)
                end.recv()
        """,
        place,
    )
    second = program(
        """
        def main():
            with dial() as end:
                queue = end.recv()
                with open("pickled", "wb") as stream:
                    stream.write(pickle.dumps(queue))
                print("pickled", flush=True)
                sys.stdin.read()
                end.send("over")
        """,
        first.line(),
    )
    assert second.line() == "pickled"
    third = program(
        """
        def main():
            with open("pickled", "rb") as stream:
                data = stream.read()
            try:
                pickle.loads(data)
            except AuthenticationError as error:
                print("authkey" in str(error))
            current_process().authkey = KEY
            pickle.loads(data).put("third")
        """
    )
    assert third.ends() == ["True"]
    assert first.line() == "third"


def test_a_program_serves_a_managers_objects_to_another_and_its_children(program, place):
    first = program(
        """
        table, numbers = {}, [1]

        def the_table():
            return table

        Store.register("table", the_table, exposed=("update", "get"))
        Store.register("numbers", lambda: numbers, ListProxy)
        Store.register("queue", queue.Queue)

        def main():
            server = Store(address(), KEY).get_server()
            tell(server.address)
            server.serve_forever()
        """,
        place,
    )
    second = program(
        """
        Store.register("table")
        Store.register("numbers", proxytype=ListProxy)
        Store.register("queue")

        def work(table, numbers, queue):
            # it lives in the other process
            queue.put(table.get("ours").get(timeout=30))
            numbers.append(3)
            queue.put(numbers)

        def main():
            store = Store(address(), KEY)
            store.connect()
            table, numbers, queue = store.table(), store.numbers(), store.queue()
            numbers.append(2)
            table.update({"ours": fiber.Queue()})
            table.get("ours").put("from-its-maker")
            child = start(work, table, numbers, queue)
            print(queue.get(timeout=30), *queue.get(timeout=30), flush=True)
            child.join()
            sys.stdin.readline()
            try:
                numbers.append(3)
            except (EOFError, ConnectionError):
                print("gone")
        """,
        first.line(),
    )
    assert second.line() == "from-its-maker 1 2 3"
    first.process.send_signal(signal.SIGINT)
    assert first.ends() == []
    second.process.stdin.write("go on\n")
    assert second.ends() == ["gone"]


def test_a_manager_that_was_shut_down_can_be_started_again_at_its_address():
    first = SyncManager(("127.0.0.1", 0), b"known to both")
    first.start()
    numbers = first.list()
    first.shutdown()
    with SyncManager(first.address, b"known to both") as second:
        assert second.list([1]).pop() == 1
        with pytest.raises((EOFError, ConnectionError)):
            numbers.append(1)
