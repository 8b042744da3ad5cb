"""Libraries of the main module, which the process that forks children imports for all of them."""

import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from commands import ran
from fiber._launch import module_server
from fiber._launch.module_server import libraries_of_main
from supervised import until_gone
from waiting import until

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others fork without it")

PROGRAM = """
import os, sys
import fiber

def tell(queue):
    import heavy
    queue.put((heavy.loaded_by == os.getppid(), helper.loaded_by == os.getpid(), heavy.threads))

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        pool.apply(os.getpid)
# from now on there is a supervisor, which has the environment of before
os.environ["THREADS_OF_HEAVY"] = "1"
import helper

if __name__ == "__main__":
    {choice}
    queue = fiber.SimpleQueue()
    for _ in range(2):
        fiber.Process(target=tell, args=(queue,)).start()
    print({queue.get() for _ in range(2)})
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
@pytest.mark.parametrize(
    "choice,told",
    [
        ("pass", (True, True, "1")),
        ("fiber.set_forkserver_preload([])", (False, True, "1")),
        ('fiber.set_forkserver_preload(["heavy.part"])', (True, True, "1")),
        ("tell = fiber.meta(cpu=1)(tell)", (False, True, "1")),
    ],
    ids=["by default", "none", "what is asked for", "a job with threads of its own"],
)
def test_what_the_main_module_uses_is_imported_once_where_children_are_forked(
    tmp_path, choice, told
):
    package = tmp_path / "site-packages" / "heavy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\nloaded_by, threads = os.getpid(), os.environ.get('THREADS_OF_HEAVY')\n"
    )
    (package / "part.py").write_text("")
    # a module of the program's own, which every child loads for itself
    (tmp_path / "helper.py").write_text(
        "import os\nfrom heavy import part\nloaded_by = os.getpid()\n"
    )
    (tmp_path / "program.py").write_text(PROGRAM.replace("{choice}", choice))
    done = ran(
        [sys.executable, "program.py"], cwd=tmp_path, env={"PYTHONPATH": str(package.parent)}
    )
    assert (done.stdout, done.stderr) == (f"{ {told} }\n", "")


ANSWERS = """
import queue, threading
questions, answers = queue.SimpleQueue(), queue.SimpleQueue()

def answer():
    while True:
        answers.put(2 * questions.get())

threading.Thread(target=answer, daemon=True).start()

def double(number):
    questions.put(number)
    return answers.get()
"""

ASKING = """
import os
import fiber
{early}

def double(number):
    return answers.double(number)

if __name__ == "__main__":
    pool = fiber.Pool(1)
    before = pool.apply(os.getppid)

{late}

if __name__ == "__main__":
    with fiber.Pool(1) as other:
        print(other.apply(double, (2,)))
    print(pool.apply(os.getppid) == before)
    pool.terminate()
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
@pytest.mark.parametrize("when", ["early", "late"])
def test_packages_whose_import_starts_threads_are_imported_by_each_child(tmp_path, when):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "answers.py").write_text(ANSWERS)
    (packages / "questions.py").write_text("import answers")
    program = ASKING
    for name in ("early", "late"):
        statement = "import questions, answers" if name == when else ""
        program = program.replace(f"{{{name}}}", statement)
    (tmp_path / "program.py").write_text(program)
    # a process without the thread waits for it for ever
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env={"PYTHONPATH": str(packages)})
    # jobs of before go on in the supervisor that has the threads
    assert (done.stdout, done.stderr) == ("4\nTrue\n", "")


NESTED = """
import fiber

def double(number):
    import answers
    print(answers.double(number), flush=True)

def finished(target, *args):
    child = fiber.Process(target=target, args=args)
    child.start()
    child.join()

def nest():
    # forked by the same process as this one
    finished(double, 1)
    fiber.set_forkserver_preload(["answers"])
    finished(double, 2)

if __name__ == "__main__":
    finished(nest)
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
def test_so_they_are_by_the_children_of_a_child(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "answers.py").write_text(ANSWERS)
    (tmp_path / "program.py").write_text(NESTED)
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env={"PYTHONPATH": str(packages)})
    assert (done.stdout, done.stderr) == ("2\n4\n", "")


LOGGING = """
import logging, sys
import fiber

logging.basicConfig(format="%(processName)s: %(message)s", level="INFO", stream=sys.stdout)
import verbose

if __name__ == "__main__":
    child = fiber.Process(target=logging.info, args=("hello",), name="child")
    child.start()
    child.join()
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
def test_the_programs_logging_is_set_up_before_a_packages(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    # a function of the module sets up the root logger if nobody has, without any say
    (packages / "verbose.py").write_text("import logging\nlogging.debug('optional part missing')\n")
    (tmp_path / "program.py").write_text(LOGGING)
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env={"PYTHONPATH": str(packages)})
    assert (done.stdout, done.stderr) == ("child: hello\n", "")


STUCK = """
import os, time
import fiber
import stuck

if __name__ == "__main__":
    print("started", flush=True)
    with fiber.Pool(1) as pool:
        print(pool.apply(os.getpid) != os.getpid())
"""


@pytest.fixture
def stuck(tmp_path):
    """Writes a program which imports a package that does something in another process than the program's."""

    def write(does):
        packages = tmp_path / "site-packages"
        packages.mkdir()
        (packages / "stuck.py").write_text(
            "import os, time\nfrom pathlib import Path\n"
            f"if Path('/proc/self/comm').read_text() == 'fiber-superv\\n':\n    {does}\n"
        )
        (tmp_path / "program.py").write_text(STUCK)
        return {"PYTHONPATH": str(packages)}

    return write


@LINUX
@pytest.mark.one_host("those that fork on this host")
@pytest.mark.parametrize(
    "does,words",
    [("os._exit(1)", "it ended without a word"), ("time.sleep(600)", "it has been silent for")],
    ids=["ends it", "takes for ever"],
)
def test_an_import_that_ends_or_hangs_the_process_that_forks_is_left_to_each_child(
    tmp_path, stuck, does, words
):
    env = {**stuck(does), "FIBER_TIME_SCALE": "0.02"}
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env=env)
    assert done.stdout == "started\nTrue\n"
    assert words in done.stderr
    assert "and each process imports by itself from now on: stuck\n" in done.stderr
    told = "the import of stuck once for all processes has taken" in done.stderr
    assert told == (does != "os._exit(1)")


@LINUX
@pytest.mark.one_host("those that fork on this host")
def test_a_process_that_an_import_has_forked_holds_nothing_up(tmp_path, stuck):
    env = {**stuck("os.fork() or (time.sleep(600), os._exit(0))"), "FIBER_TIME_SCALE": "0.1"}
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env=env)
    assert (done.stdout, done.stderr) == ("started\nTrue\n", "")


@LINUX
@pytest.mark.one_host("those that fork on this host")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_the_process_that_forks_ends_with_the_program_while_it_imports(tmp_path, stuck, signum):
    found = tmp_path / "pid"
    env = stuck(f"os.write(os.open({str(found)!r}, 65), b'%d\\n' % os.getpid()); time.sleep(600)")
    program = [sys.executable, "program.py"]
    with subprocess.Popen(
        program,
        cwd=tmp_path,
        env={**os.environ, **env, "FIBER_TIME_SCALE": "0.1"},
        stderr=subprocess.PIPE,
    ) as process:
        until(lambda: found.exists() and found.read_text().endswith("\n"))
        process.send_signal(signum)
        # until no process has the other end of it any more
        assert (b"KeyboardInterrupt" in process.stderr.read()) == (signum == signal.SIGINT)
    until_gone(int(found.read_text()))


READING = """
import os
import fiber
import reads

def tell():
    print(reads.argv, reads.loaded_by == os.getppid(), flush=True)

if __name__ == "__main__":
    child = fiber.Process(target=tell)
    child.start()
    child.join()
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
def test_packages_read_the_programs_arguments_while_they_are_imported(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "reads.py").write_text(
        "import os, sys\nargv, loaded_by = list(sys.argv), os.getpid()\n"
    )
    (tmp_path / "program.py").write_text(READING)
    program = [sys.executable, "program.py", "--debug"]
    done = ran(program, cwd=tmp_path, env={"PYTHONPATH": str(packages)})
    assert (done.stdout, done.stderr) == ("['program.py', '--debug'] True\n", "")


EFFECTS = """
import os, signal, sys

def on_sigterm(signum, frame):
    sys.exit(3)

signal.signal(signal.SIGTERM, on_sigterm)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.environ["ONLY_FOR_THE_IMPORT"] = os.environ["FOR_THE_PROGRAM"] = "set by the import"
"""

USING = """
import os, signal
import fiber

if {late} and __name__ == "__main__":
    running = fiber.Pool(1)
    before = running.apply(os.getpid)

import effects
# as programs do that use both cv2 and Qt
del os.environ["ONLY_FOR_THE_IMPORT"]

def tell(queue):
    queue.put((os.environ["FOR_THE_PROGRAM"], signal.getsignal(signal.SIGCHLD).name))
    signal.pause()

if __name__ == "__main__":
    os.environ["FOR_THE_PROGRAM"] = "set by the program"
    queue = fiber.SimpleQueue()
    child = fiber.Process(target=tell, args=(queue,))
    child.start()
    print(*queue.get())
    child.terminate()
    child.join()
    print(child.exitcode)
    if {late}:
        assert running.apply(os.getpid) == before
        running.terminate()
"""


@LINUX
@pytest.mark.one_host("those that fork on this host")
@pytest.mark.parametrize("late", [False, True], ids=["at first", "while jobs run"])
def test_a_child_has_the_signal_handlers_and_variables_that_imports_set(tmp_path, late):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "effects.py").write_text(EFFECTS)
    (tmp_path / "program.py").write_text(USING.format(late=late))
    done = ran([sys.executable, "program.py"], cwd=tmp_path, env={"PYTHONPATH": str(packages)})
    assert (done.stdout, done.stderr) == ("set by the import SIG_IGN\n3\n", "")


def module(name, file, /, **values):
    found = ModuleType(name)
    found.__file__, found.__spec__ = file, ModuleSpec(name, None, origin=file)
    vars(found).update(values)
    return found


def ask(_):
    raise AssertionError("an object may import what it stands for when it is asked for its class")


@pytest.fixture
def descriptors(monkeypatch, tmp_path):
    """Folder of descriptors, none of which is open."""
    monkeypatch.setattr(module_server, "_DESCRIPTORS", str(tmp_path))
    return tmp_path


@pytest.fixture
def program(descriptors):
    """Modules of a program."""
    numpy = module("numpy", "/x/site-packages/numpy/__init__.py")
    alias = module("alias", "/x/site-packages/alias.py")
    alias.__spec__.name = "of_another.name"
    model = type("Model", (), {"__module__": "torch.nn"})
    envs = module("envs", "/home/me/envs.py", Model=model, main=module("__main__", None))
    norm = type("norm_gen", (), {"__module__": "scipy.stats", "__class__": property(ask)})()
    exit_ = type("Exit", (), {"__module__": "lazy"})()
    main = module("__main__", "/home/me/p.py", np=numpy, envs=envs, alias=alias, os=os, norm=norm)
    main.exit = main.__loader__ = exit_
    main.fiber = module("fiber", "/x/site-packages/fiber/__init__.py")
    return {
        **{one.__name__: one for one in (numpy, alias, envs, main, main.fiber, os)},
        "torch.nn": module("torch.nn", "/x/site-packages/torch/nn/__init__.py"),
        "scipy.stats": module("scipy.stats", "/x/site-packages/scipy/stats/__init__.py"),
        "lazy": module("lazy", "/x/site-packages/lazy.py"),
    }


def test_libraries_are_the_installed_modules_that_the_programs_own_refer_to(program):
    assert libraries_of_main(program) == ["numpy", "scipy.stats", "torch.nn"]


@pytest.mark.parametrize(
    "path,found", [("/dev/pts/3", ["numpy", "scipy.stats", "torch.nn"]), ("/dev/nvidia0", [])]
)
def test_there_are_none_while_a_device_is_open_which_a_fork_could_not_use(
    program, descriptors, path, found
):
    (descriptors / "7").symlink_to(path)
    assert libraries_of_main(program) == found


def test_there_are_none_where_a_fork_is_not_safe(program, descriptors):
    descriptors.rmdir()
    assert libraries_of_main(program) == []
