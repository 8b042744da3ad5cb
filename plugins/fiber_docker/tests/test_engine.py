"""The tests' own engine: its image, its network, its users side by side, its start for all and its end."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

import dockerd

RUN_ENGINE = Path(dockerd.__file__).with_name("run_engine.py")
#: a program whose end comes with that of its standard input
STAYS = f"import os, sys; print(os.environ['{dockerd.VARIABLE}'], flush=True); sys.stdin.read(); exit(3)"
#: a program that runs another one
PARENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def test_a_container_reaches_a_listener_of_this_host_over_the_bridge(engine):
    with (
        socket.create_server((engine.gateway, 0)) as listener,
        contextlib.closing(engine.docker()) as client,
    ):

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=answer)
        thread.start()
        code = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print(s.recv(9))"
        port = str(listener.getsockname()[1])
        output = client.containers.run(
            engine.image, ["python3", "-c", code, engine.gateway, port], remove=True
        )
        thread.join()

    assert output == b"b'hello'\n"


def test_the_image_holds_fiber(engine):
    code = "import fiber, fiber_docker; print(fiber.__name__, fiber_docker.__name__)"
    with contextlib.closing(engine.docker()) as client:
        output = client.containers.run(engine.image, ["python3", "-c", code], remove=True)

    assert output == b"fiber fiber_docker\n"


def test_tests_that_use_it_at_the_same_time_see_and_remove_their_own_alone(engine):
    with (
        contextlib.closing(engine.docker()) as client,
        dockerd.session(engine) as one,
        dockerd.session(engine) as other,
    ):
        client.images.build(
            fileobj=io.BytesIO(f"FROM {one.image}\nLABEL a=b\n".encode()),
            tag=one.named("derived"),
            rm=True,
        )
        client.api.create_container(one.image, ["true"], name=one.named("first"))
        client.api.create_container(one.named("derived"), ["true"], name=one.named("second"))
        client.api.create_container(other.image, ["true"], name=other.named("first"))

        assert len(one.containers()) == 2
        assert len(other.containers()) == 1
        assert one.environ()["LOGNAME"] != other.environ()["LOGNAME"]
        other.clear()
        assert other.containers() == []
        assert len(one.containers()) == 2
        labels = one.labels()
    with contextlib.closing(engine.docker()) as client:
        assert client.api.containers(all=True, filters={"label": labels}) == []
        assert client.api.images(filters={"label": labels}) == []


@pytest.fixture
def run_engine(tmp_path):
    """Starts the command, with an image of nothing, as a child of a process that can be killed."""
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("word"))
    made = []

    def start(*command):
        words = [
            sys.executable,
            "-c",
            PARENT,
            sys.executable,
            RUN_ENGINE,
            "--archive",
            archive,
            "--",
        ]
        environ = {key: value for key, value in os.environ.items() if key != dockerd.VARIABLE}
        made.append(
            subprocess.Popen(
                [*words, *command],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def is_gone(told):
    """Whether nothing is left of an engine that a variable names."""
    socket = Path(told["url"].removeprefix("unix://"))
    bridge = Path("/sys/class/net", f"fiber{told['gateway'].split('.')[2]}")
    return not socket.parent.exists() and not bridge.exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command, how, code",
    [
        ((sys.executable, "-c", STAYS), "its command ends", 3),
        ((), "its input ends", 0),
        ((sys.executable, "-c", STAYS), "its parent is killed", -9),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_engine_for_all_is_gone_when(engine, run_engine, command, how, code):
    process = run_engine(*command)
    line = json.loads(process.stdout.readline())
    told = line if command else json.loads(line[dockerd.VARIABLE])
    with contextlib.closing(
        dockerd.Engine(url=told["url"], gateway=told["gateway"]).docker()
    ) as it:
        assert it.images.get(told["image"])

    if how == "its parent is killed":
        process.kill()
        # the end of its output is that of all that were started
        assert process.stdout.read() == ""
    else:
        process.communicate(timeout=200)

    assert process.wait() == code
    assert is_gone(told)
