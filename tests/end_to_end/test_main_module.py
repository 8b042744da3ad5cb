"""``__main__`` in children: scripts, ``-m``, ``-c``, standard input, unguarded ones; odd modules."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from commands import ran

# what a script defines, used by all ways to run it
BODY = """
import enum
import threading
import fiber

class MyError(Exception):
    pass

class Colour(enum.Enum):
    RED = 1

LOCK = threading.Lock()
COUNT = 0
SET = None
BIG = bytearray(32 * 2**20)

def init(value):
    global SET
    SET = value

def get(_):
    return SET

def count(_):
    global COUNT
    with LOCK:
        COUNT += 1
        return COUNT

def fail(_):
    raise MyError("mine")

def red(colour):
    return colour is Colour.RED

def run():
    with fiber.Pool(1, initializer=init, initargs=(42,)) as pool:
        assert pool.map(get, range(3)) == [42] * 3
        assert pool.map(count, range(3)) == [1, 2, 3]
        assert pool.map(count, range(2)) == [4, 5]
        assert pool.map(lambda _: count(None), range(2)) == [6, 7]
        assert pool.apply(red, (Colour.RED,))
        assert pool.apply(lambda c: c is Colour.RED, (Colour.RED,))
        try:
            pool.apply(fail, (1,))
        except MyError as error:
            assert str(error) == "mine"
        else:
            raise AssertionError("no error")
    pool.join()
    print("all right")
"""
GUARDED = BODY + "\nif __name__ == '__main__':\n    run()\n"
UNGUARDED = BODY + "\nrun()\n"


@pytest.fixture
def python(tmp_path):
    """Runs Python with a program in the current folder; what it printed, where it said nothing else."""

    def run(*arguments, program=GUARDED, stdin=None):
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        done = ran([sys.executable, *arguments], input=stdin, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.parametrize(
    "arguments, stdin",
    [
        (["program.py"], None),
        (["-m", "program"], None),
        (["-m", "package"], None),
        (["-c", UNGUARDED], None),
        (["-"], UNGUARDED),
    ],
    ids=["script", "module", "package", "command", "stdin"],
)
def test_globals_exceptions_and_enums_are_the_same_in_workers(python, tmp_path, arguments, stdin):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(UNGUARDED)

    assert python(*arguments, stdin=stdin) == "all right\n"


def test_an_unguarded_main_is_told_the_line_and_what_to_do_and_nothing_else(tmp_path):
    (tmp_path / "program.py").write_text(
        "import fiber\n"
        "process = fiber.Process(target=print)\n"
        "process.start()\n"
        "process.join()\n"
        "print('exit code', process.exitcode)\n"
    )
    done = ran([sys.executable, "program.py"], cwd=tmp_path)

    [line] = done.stderr.splitlines()
    assert line.startswith(
        f"fiber: {tmp_path}/program.py, line 3: An attempt has been made to start"
    )
    assert line.endswith('below `if __name__ == "__main__":`')
    assert "exit code 1" in done.stdout


def test_globals_that_cannot_be_sent_are_those_of_the_childs_own_main(python):
    assert (
        python(
            "program.py",
            program="""\
import queue, threading
import fiber
from fiber.managers import BaseManager

TASKS = queue.Queue()

class Tasks(BaseManager):
    pass

Tasks.register("tasks", callable=lambda: TASKS)

if __name__ == "__main__":
    READY = threading.Event()
    with Tasks() as manager:
        manager.tasks().put("one")
        assert (manager.tasks().get(), TASKS.qsize()) == ("one", 0)
    with fiber.Pool(1) as pool:
        assert pool.apply(lambda: (TASKS.put("two"), TASKS.get())[1]) == "two"
        for function, message in (
            (lambda: READY.is_set(), "the global 'READY' of a function cannot be sent"),
            (lambda: threading.Lock(), "Error sending result"),
        ):
            try:
                pool.apply(function)
            except Exception as error:
                assert message in str(error), error
            else:
                raise AssertionError("no error")
    print("all right")
""",
        )
        == "all right\n"
    )


def test_odd_modules_paths_and_arguments_and_a_removed_folder_keep_no_process_from_starting(
    tmp_path,
):
    (tmp_path / "here").mkdir()
    (tmp_path / "program.py").write_text(
        """\
import importlib.util, os, pathlib, sys
import fiber

class Touchy:
    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")

if __name__ == "__main__":
    sys.modules["touchy"] = Touchy()
    spec = importlib.util.find_spec("colorsys")
    loader = importlib.util.LazyLoader(spec.loader)
    lazy = sys.modules["colorsys"] = importlib.util.module_from_spec(spec)
    loader.exec_module(lazy)
    sys.path += [pathlib.Path("/nowhere"), b"/bytes", None]
    sys.argv.append(pathlib.Path("argument"))
    os.rmdir(os.getcwd())
    with fiber.Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    process = fiber.Process(target=print, args=("all right",))
    process.start()
    process.join()
    assert "rgb_to_hsv" not in object.__getattribute__(lazy, "__dict__")
"""
    )
    done = ran([sys.executable, tmp_path / "program.py"], cwd=tmp_path / "here")

    assert (done.stdout, done.stderr, done.returncode) == ("all right\n", "", 0)


def test_an_unguarded_main_may_catch_the_error_as_with_the_stdlib(tmp_path):
    (tmp_path / "program.py").write_text(
        "import fiber\n"
        "process = fiber.Process(target=print, args=('from the child',))\n"
        "try:\n"
        "    process.start()\n"
        "    process.join()\n"
        "except RuntimeError:\n"
        "    pass\n"
    )
    done = ran([sys.executable, "program.py"], cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("from the child\n", "")


def test_arguments_flags_and_warnings_are_those_of_the_parent(python):
    flags = ("-O", "-W", "error::UserWarning")
    program = """
        import sys
        import fiber

        def facts(_):
            return sys.argv, sys.flags.optimize, sys.warnoptions

        if __name__ == "__main__":
            with fiber.Pool(1) as pool:
                there, here = pool.apply(facts, (1,)), facts(1)
            pool.join()
            print("the same" if there == here else (there, here))
        """

    assert python(*flags, "program.py", "one", "two", program=program) == "the same\n"


def test_a_module_that_was_loaded_by_file_is_found_in_children(python, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    odd = tmp_path / "elsewhere" / "odd_module.py"
    odd.write_text("def triple(x):\n    return 3 * x\n")
    program = """
        import importlib.util, sys
        import fiber

        if __name__ == "__main__":
            spec = importlib.util.spec_from_file_location("odd_module", sys.argv[1])
            module = sys.modules["odd_module"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            with fiber.Pool(1) as pool:
                print(pool.map(module.triple, [1, 2]))
            pool.join()
        """

    assert python("program.py", str(odd), program=program) == "[3, 6]\n"


def test_processes_that_start_when_the_last_line_has_run_have_the_programs_functions(python):
    program = """
        import threading
        import fiber

        def double(number):
            return number * 2

        def late():
            threading.main_thread().join()
            with fiber.Pool(1) as pool:
                print(pool.apply(double, (4,)))
            fiber.Process(target=print, args=(double(5),)).start()

        if __name__ == "__main__":
            fiber.Pool(1).apply(double, (3,))
            threading.Thread(target=late).start()
        """

    assert python("program.py", program=program) == "8\n10\n"


@pytest.mark.parametrize("moment", [0.1, 0.3, 0.6, 1.0])
def test_ctrl_c_while_a_program_begins_shows_one_short_traceback(tmp_path, moment):
    script = tmp_path / "program.py"
    sleep = "with fiber.Pool(2) as pool: pool.map(time.sleep, [0.2] * 1000)"
    start = "print(flush=True)\nimport time, fiber"
    script.write_text(f"{start}\nif __name__ == '__main__':\n    {sleep}\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, script]
    with subprocess.Popen(command, start_new_session=True, **pipes) as program:
        # an interpreter that is interrupted before it runs the script has words of its own
        program.stdout.readline()
        # any moment will do
        time.sleep(moment)
        os.killpg(program.pid, signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    # the interpreter's search for a module handles errors of its own, and is interrupted in that too
    own = said.count("During handling of the above exception")
    assert said.count("Traceback") - own <= 1, said
    # without the import system's, of which each module in a chain of imports has up to six; from a pool
    # to where it waits for its supervisor's answer there are 25
    assert said.count('File "/') < 35, said


def test_a_process_whose_start_was_interrupted_ends_without_a_word(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            import fiber, psutil
            from fiber._agent.supervisor.client import SupervisorClient

            def interrupted(*args, submit=SupervisorClient.submit, **kwargs):
                global child
                # it may have ended by the time that the interrupt is caught
                child = psutil.Process(*submit(*args, **kwargs).pids)
                raise KeyboardInterrupt

            if __name__ == "__main__":
                SupervisorClient.submit = interrupted
                try:
                    fiber.Process(target=time.sleep, args=(100,)).start()
                except KeyboardInterrupt:
                    child.wait(50)
            """
        )
    )
    said = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=60
    ).stderr
    assert said == ""
