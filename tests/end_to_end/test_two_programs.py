"""Two programs, started apart, that share an address and an authkey and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fiber._agent import rundir

PATIENCE = 60

#: what both programs begin with; the port or path comes by standard output of the first
HEAD = """
import os, pickle, sys
from multiprocessing import AuthenticationError, current_process
import fiber
from fiber.connection import Client, Listener, wait

KEY = b"known to both"

def address():
    return ("127.0.0.1", int(sys.argv[1])) if sys.argv[1].isdigit() else sys.argv[1]

def listen():
    listener = Listener(address(), authkey=KEY)
    where = listener.address
    print(where[1] if isinstance(where, tuple) else where, flush=True)
    return listener
"""


class Program:
    """One program that runs."""

    def __init__(self, folder, body, *arguments):
        text = f"{HEAD}\n{textwrap.dedent(body)}\nif __name__ == '__main__':\n    main()\n"
        path = folder / f"program{len(list(folder.glob('program*.py')))}.py"
        path.write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, path, *map(str, arguments)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def ends(self):
        """Wait for its end; what it printed."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err
        return out.split()

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def program(tmp_path):
    programs = []

    def start(body, *arguments):
        programs.append(Program(tmp_path, body, *arguments))
        return programs[-1]

    yield start
    for one in programs:
        one.kill()
    # as the next program would: those that were killed left theirs
    rundir.sweep()


@pytest.fixture(params=["AF_UNIX", "AF_INET"])
def place(request, tmp_path):
    """What is given to the first program."""
    return 0 if request.param == "AF_INET" else str(tmp_path / "meeting")


def test_values_of_any_kind_and_size_travel(program, place):
    first = program(
        """
        def main():
            with listen() as listener, listener.accept() as end:
                while True:
                    try:
                        end.send(end.recv())
                    except EOFError:
                        break
            print("over")
        """,
        place,
    )
    second = program(
        """
        def main():
            with Client(address(), authkey=KEY) as end:
                for value in (None, {"a": [1]}, "x" * 10, bytes(20_000_000), lambda x: x + 1):
                    end.send(value)
                    back = end.recv()
                    print(back(1) == 2 if callable(back) else back == value)
                print(wait([end], 0) == [])
        """,
        first.line(),
    )
    assert second.ends() == ["True"] * 6
    assert first.ends() == ["over"]


def test_children_of_both_programs_use_the_connection(program, place):
    first = program(
        """
        def serve(end):
            with end:
                end.send(end.recv() + 1)

        def main():
            with listen() as listener:
                end = listener.accept()
                child = fiber.Process(target=serve, args=(end,))
                child.start()
                end.close()
                child.join()
            print(child.exitcode)
        """,
        place,
    )
    second = program(
        """
        def ask(end, answers):
            end.send(41)
            answers.put(end.recv())

        def main():
            answers = fiber.Queue()
            with Client(address(), authkey=KEY) as end:
                child = fiber.Process(target=ask, args=(end, answers))
                child.start()
            print(answers.get())
            child.join()
        """,
        first.line(),
    )
    assert second.ends() == ["42"]
    assert first.ends() == ["0"]


def test_queues_and_pipes_of_either_program_travel(program, place):
    first = program(
        """
        def main():
            with listen() as listener, listener.accept() as end:
                tasks = fiber.Queue()
                end.send(tasks)
                results = end.recv()
                results.put(tasks.get() * 2)
                inner, outer = fiber.Pipe()
                end.send(outer)
                outer.close()
                print(inner.recv())
                end.recv()
        """,
        place,
    )
    second = program(
        """
        def main():
            with Client(address(), authkey=KEY) as end:
                tasks, results = end.recv(), fiber.Queue()
                tasks.put(21)
                end.send(results)
                print(results.get(timeout=30))
                end.recv().send("inner")
                end.send("over")
        """,
        first.line(),
    )
    assert second.ends() == ["42"]
    assert first.ends() == ["inner"]


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
    second = program(waits.format("Client(address(), authkey=KEY)"), first.line())
    assert first.line() == second.line() == "here"
    dead, other = (first, second) if dies == "listener" else (second, first)
    dead.process.send_signal(signal.SIGKILL)
    assert other.ends() == ["gone"]


def test_another_authkey_and_none_are_refused(program, place):
    first = program(
        """
        def main():
            with listen() as listener, listener.accept() as end:
                print(end.recv())
        """,
        place,
    )
    second = program(
        """
        def main():
            for key in (b"another", None):
                try:
                    Client(address(), authkey=key)
                except AuthenticationError as error:
                    print("refused")
            with Client(address(), authkey=KEY) as end:
                end.send("right")
        """,
        first.line(),
    )
    assert second.ends() == ["refused", "refused"]
    assert first.ends() == ["right"]


def test_a_handle_that_a_program_pickled_itself_needs_the_authkey(program, place, tmp_path):
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
            with Client(address(), authkey=KEY) as end:
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
        """,
    )
    assert third.ends() == ["True"]
    assert first.line() == "third"
