"""Programs as users start them: images that do not fit, networks, contexts, masters in containers."""

import contextlib
import subprocess
import sys
import threading

import pytest
from docker.context import ContextAPI

from commands import ran
from terminals import Terminal

pytestmark = pytest.mark.timeout(400)

ONE = """
import fiber

if __name__ == "__main__":
    process = fiber.Process(target=print, args=("hello",))
    process.start()
    process.join()
"""

SUM = """
import fiber

if __name__ == "__main__":
    with fiber.Pool(2) as pool:
        print(sum(pool.map(abs, range(10))))
"""

FIBER = "/usr/local/lib/python3*/*-packages/fiber"
#: its Python has the header of a program for 64-bit ARM, as far as a kernel reads it
OTHER_CPU = (
    "python=$(command -v python3); rm $python; "
    r"printf '\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\267\0' >$python; chmod 755 $python"
)


def changed(engine, script):
    """Make an image in which a script has run; returns its name."""
    name = engine.named("changed")
    with contextlib.closing(engine.docker()) as client:
        made = client.containers.create(engine.image, ["sh", "-c", script])
        made.start()
        assert made.wait()["StatusCode"] == 0
        made.commit(name, "latest")
        made.remove()
    return f"{name}:latest"


@pytest.mark.parametrize(
    "script, named",
    [
        pytest.param(f"rm -r {FIBER}", "fiber-core", id="without fiber"),
        pytest.param(
            f"echo '__version__ = \"99.1.0\"' > $(echo {FIBER}/_version.py)",
            "99.1.0",
            id="another fiber",
        ),
        pytest.param(OTHER_CPU, "for another kind of CPU than the engine's", id="another CPU"),
    ],
)
def test_an_image_that_does_not_fit_is_reported(engine, run_program, script, named):
    """The engine starts it, and Python ends at once: the error has its last lines."""
    done = run_program(ONE, FIBER_IMAGE=changed(engine, script))

    assert done.returncode != 0
    assert "StartError" in done.stderr
    assert named in done.stderr, done.stderr
    # by the interpreter on the terminal, and in the error
    assert done.stderr.count("No module named") <= 2, done.stderr


def test_the_engine_of_a_context_is_used_and_processes_join_a_network_of_the_users(
    engine, run_program, tmp_path, monkeypatch
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    ContextAPI.create_context("lab", host=engine.url)
    with contextlib.closing(engine.docker()) as client:
        network = client.networks.create(engine.named("apart"))
        try:
            settings = {"FIBER_DOCKER_CONTEXT": "lab", "FIBER_DOCKER_NETWORK": network.name}
            done = run_program(SUM, DOCKER_HOST=None, **settings)
        finally:
            network.remove()

    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr


PRIVILEGES = """
import fiber

def status(_):
    found = dict(line.split()[:2] for line in open("/proc/self/status"))
    return found["CapBnd:"], found["NoNewPrivs:"]

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        print(*pool.apply(status, (0,)))
"""


@pytest.mark.parametrize(
    "setting, found",
    # those of the default write and give away the files of others, change users, bind low ports
    [(None, "00000000000004fb 1"), ("restricted", "0000000000000000 1"), ("image", "00000000a80425fb 0")],
)  # fmt: skip
def test_processes_work_without_privileges_that_they_do_not_need(run_program, setting, found):
    done = run_program(PRIVILEGES, FIBER_DOCKER_SECURITY=setting)

    assert (done.returncode, done.stdout.strip()) == (0, found), done.stderr


def test_a_master_in_a_container_starts_containers_of_its_own_image(engine, tmp_path):
    """Its network and image are found: nothing names them."""
    (tmp_path / "program.py").write_text(SUM)
    socket = engine.url.removeprefix("unix://")
    with contextlib.closing(engine.docker()) as client:
        output = client.containers.run(
            engine.image,
            ["python3", "/here/program.py"],
            environment={"FIBER_BACKEND": "docker"},
            volumes=[f"{socket}:/var/run/docker.sock", f"{tmp_path}:/here:ro"],
            remove=True,
        )

    assert output == b"45\n"
    assert engine.containers() == []


#: what each task is begun on is counted; the first one waits for a word
COUNTED = """
import platform, sys
import fiber

def task(n, begun, word):
    begun.put((n, platform.node()))
    return n * n if n else word.get()

if __name__ == "__main__":
    begun, word = fiber.Queue(), fiber.Queue()
    with fiber.Pool(2, error_handling=False) as pool:
        result = pool.starmap_async(task, [(n, begun, word) for n in range(8)], chunksize=1)
        where = dict(begun.get(timeout=100) for _ in range(8))
        print(where[0], flush=True)
        sys.stdin.readline()
        word.put("done")
        assert result.get(100) == ["done"] + [n * n for n in range(1, 8)]
        pool.close()
        pool.join()
    print("begun again", begun.qsize(), flush=True)
"""


def test_a_worker_that_is_paused_for_longer_than_its_lease_goes_on(engine, tmp_path):
    (tmp_path / "program.py").write_text(COUNTED)
    environ, words = engine.environ(), [sys.executable, "program.py"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=tmp_path, env=environ, text=True, **pipes) as program:
        # a program that hangs is the end of the test's patience
        guard = threading.Timer(200, program.kill)
        guard.start()
        try:
            container = program.stdout.readline().strip()
            engine.pause(container)
            # said after five seconds, and the lease is three
            line = program.stderr.readline()
            assert "is suspended by its platform, and keeps its tasks" in line, line
            listed = ran(
                [sys.executable, "-m", "fiber.cli.main", "ps"], env=environ, check=True
            ).stdout
            assert [line for line in listed.splitlines() if "suspended" in line], listed
            with contextlib.closing(engine.docker()) as client:
                client.api.unpause(container)
            out, err = program.communicate("go on\n")
        finally:
            guard.cancel()
            program.kill()

    assert (out, err) == ("begun again 0\n", "")
    assert engine.containers() == []


STOPS = """
import fiber

def half(number):
    breakpoint()
    return number / 2

if __name__ == "__main__":
    with fiber.Executor(1) as executor:
        print("result", executor.submit(half, 4).result())
"""


def test_a_breakpoint_in_a_container_has_its_prompt_on_the_programs_terminal(engine, tmp_path):
    (tmp_path / "program.py").write_text(STOPS)
    environ = engine.environ(FIBER_DEBUGGER="1")
    with contextlib.closing(Terminal(tmp_path / "program.py", environ)) as shown:
        shown.expect(r"PoolWorker-\d+ \(pid \d+ on \S+\), half\[0\], has stopped")
        shown.expect(r"\(Pdb\) ")
        shown.type("number = 10\n")
        shown.expect(r"\(Pdb\) ")
        shown.type("c\n")
        code, rest = shown.end()

    assert (code, "result 5.0" in rest) == (0, True), rest
