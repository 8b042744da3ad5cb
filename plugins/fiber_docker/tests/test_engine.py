"""The tests' own engine: its users side by side, its start for all and its end."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import dockerd

RUN_ENGINE = Path(dockerd.__file__).with_name("run_engine.py")
#: a program whose end comes with that of its standard input
STAYS = f"import os, sys; print(os.environ['{dockerd.VARIABLE}'], flush=True); sys.stdin.read(); exit(3)"
#: a program that runs another one
PARENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


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
def test_an_engine_for_all_is_gone_when(engine, tmp_path, command, how, code):
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("word"))
    words = [sys.executable, RUN_ENGINE, "--archive", archive, "--", *command]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *words],
        env={key: value for key, value in os.environ.items() if key != dockerd.VARIABLE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        line = json.loads(process.stdout.readline())
        told = line if command else json.loads(line[dockerd.VARIABLE])
        running = dockerd.Engine(url=told["url"], gateway=told["gateway"])
        with contextlib.closing(running.docker()) as client:
            assert client.images.get(told["image"])

        if how == "its parent is killed":
            process.kill()
            # the end of its output is that of all that were started
            assert process.stdout.read() == ""
        else:
            process.communicate(timeout=200)

    assert process.returncode == code
    assert not Path(told["url"].removeprefix("unix://")).parent.exists()
    assert not Path("/sys/class/net", f"fiber{told['gateway'].split('.')[2]}").exists()


def test_an_engine_that_does_not_answer_is_told_from_one_that_does(engine, tmp_path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()

        assert engine.answers()
        assert not dockerd.Engine(url=f"unix://{silent.getsockname()}", gateway="").answers(1)
