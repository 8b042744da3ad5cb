"""Podman's socket, where it is installed: processes run, ends are known, nothing is left.

The service is one of the tests' own, with folder, network and image; all gone at the end.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import dockerd
from require import need

pytestmark = pytest.mark.timeout(600)

ENDS = """
import os, signal, sys, fiber

def die(number):
    os.kill(os.getpid(), number)

if __name__ == "__main__":
    ends = [(sys.exit, (7,)), (die, (signal.SIGKILL,)), (print, ("hello",))]
    processes = [fiber.Process(target=target, args=args) for target, args in ends]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""
#: ends while workers are made, are started, and run
SHORT = """
import fiber

if __name__ == "__main__":
    with fiber.Pool(6) as pool:
        assert pool.apply(abs, (-1,)) == 1
    print("done")
"""
IMAGE = "localhost/fiber-test:latest"
PATIENCE = 60.0
#: what a container gets unless said otherwise is more than root may have in some machines
CONF = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
#: the default network, whose bridge and addresses nobody else has
NUMBER = os.getpid() % 250
GATEWAY = f"10.234.{NUMBER}.1"
NETWORK = {
    "name": "podman",
    "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
    "driver": "bridge",
    "network_interface": f"fiberp{NUMBER}",
    "created": "2024-01-01T00:00:00Z",
    "subnets": [{"subnet": f"10.234.{NUMBER}.0/24", "gateway": GATEWAY}],
    "ipv6_enabled": False,
    "internal": False,
    "dns_enabled": False,
    "ipam_options": {"driver": "host-local"},
}


@pytest.fixture(scope="module")
def engine():
    """What programs of these tests run on."""
    need("podman", dockerd.missing(("podman", "conmon", "runc"), "podman runc"))
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    (folder / "networks").mkdir()
    (folder / "networks" / "podman.json").write_text(json.dumps(NETWORK))
    (folder / "containers.conf").write_text(CONF)
    command = [
        "podman",
        f"--root={folder}/root",
        f"--runroot={folder}/run",
        f"--tmpdir={folder}/tmp",
        f"--network-config-dir={folder}/networks",
        "--cgroup-manager=cgroupfs",
        "--events-backend=file",
        "--runtime=runc",
    ]
    url = f"unix://{folder}/podman.sock"
    environ = {**os.environ, "PATH": dockerd.PATH, "CONTAINERS_CONF": f"{folder}/containers.conf"}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(dockerd.unmount, folder)
        image = stack.enter_context(dockerd.archive(folder, dockerd.DISTRIBUTIONS))
        log = stack.enter_context((folder / "log").open("wb"))
        service = subprocess.Popen(
            [*command, "system", "service", "--time=0", url],
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
        stack.callback(dockerd.end, service)

        def ask(*words):
            subprocess.run([*command, *words], check=True, capture_output=True, env=environ)

        path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ask("import", "--change", path, str(image()), IMAGE)
        deadline = time.monotonic() + PATIENCE
        while not (folder / "podman.sock").exists():
            words = (folder / "log").read_text()[-2000:]
            assert service.poll() is None and time.monotonic() < deadline, words
            # it tells nobody that it listens
            time.sleep(0.05)
        stack.callback(ask, "rm", "--all", "--force", "--time=0")
        yield dockerd.Engine(url=url, gateway=GATEWAY, image=IMAGE)


@pytest.mark.parametrize(
    "program, lines, times",
    [(ENDS, ["hello", "[7, -9, 0]"], 1), (SHORT, ["done"], 3)],
    ids=["whose processes end in each way", "that ends while its workers start"],
)
def test_a_program_leaves_no_container(run_program, program, lines, times):
    for _ in range(times):
        done = run_program(program)
        assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr
