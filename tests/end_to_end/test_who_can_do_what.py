"""Sockets of running programs, and what outsiders get from them: the guide's table is what is found."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import outsider
import require
from mpi_stacks import stack
from running import Program
from ssh_hosts import command, ssh_hosts

pytestmark = pytest.mark.timeout(180)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "who-can-do-what.md"
PROGRAM = Path(__file__).parent / "programs" / "listening.py"
#: processes by their command lines, the first that fits
PROCESSES = {
    "sshd": r"^sshd",
    "program": r"fiber\.cli\.main mpirun|listening\.py (?!train|mpi)",
    "agent": r"agent-\w+\b",
    "mpirun": r"^\S*(mpirun|orted) ",
    "torchrun": r"torch\.distributed\.run",
    "rank": r"listening\.py",
    "job": r"python",
}
LIST = """
import json, psutil
print(json.dumps([(one.pid, one.laddr) for one in psutil.net_connections("all") if one.laddr and (
    one.status == "LISTEN" or one.family == 1 or one.type == 2 and not one.raddr)]))
"""
WHERE = {"127.0.0.1": "loopback", "0.0.0.0": "all interfaces", "::": "all interfaces"}
#: seconds to see that what is left open is, and for what should be cut off
LONG_ENOUGH, PATIENCE = 5, 60
ENTER = "ip netns exec {0.namespace}"
TLS, SSH = {"FIBER_LOCAL_TRANSPORT": "tls"}, {"FIBER_BACKEND": "ssh"}
#: by the guide's names: what the program does, and settings
SCENARIOS = {
    "pool": ("pool", {}),
    "pool by TLS": ("pool", TLS),
    "objects": ("objects", {}),
    "listeners": ("listeners", {}),
    "`fiber run`": ("pool", {}),
    "`fiber mpirun`": ("mpi", {}),
    "torch": ("torch", {}),
    "torchrun": ("torchrun", {}),
    "JAX": ("jax", {}),
    "Horovod": ("horovod", {}),
    "ssh": ("pool", SSH),
    "ssh, streams": ("pool", {**SSH, "FIBER_SSH_REACH": "reversed"}),
    "ssh, torch": ("torch", SSH),
    "ssh, JAX": ("jax", SSH),
    "ssh, Horovod": ("horovod", SSH),
}
COMMANDS = {"`fiber run`": "run -a --", "`fiber mpirun`": "mpirun -np 2 --"}
NEEDS = {"torch": "torch", "torchrun": "torch", "JAX": "jax", "ssh": "fiber_ssh"}


def rows():
    """Of the guide: scenarios; process, socket, and what another user and another host get."""
    cells = [line.strip("| ").split(" | ") for line in GUIDE.read_text("utf-8").splitlines()]
    return [(row[0].split("; "), tuple(row[1:5])) for row in cells if {*row[1:2]} & {*PROCESSES}]


@pytest.fixture(scope="module")
def hosts():
    with ssh_hosts("alpha", "beta") as world:
        yield world


def sockets(host):
    """Process and address as the guide has them, and where the socket is reached on its host."""
    words = [*ENTER.format(host).split(), sys.executable, "-c", LIST]
    for pid, at in json.loads(subprocess.check_output(words)):
        line = command(pid) if pid else ""
        process = next((name for name, it in PROCESSES.items() if re.search(it, line)), "nobody")
        if isinstance(at, str):
            path = Path(f"/proc/{pid}/cwd").resolve() / at
            yield process, f"`{re.sub('[0-9a-f]{8}', '*', path.name)}`", str(path)
        elif process != "sshd":
            where = WHERE.get(at[0].removeprefix("::ffff:"), "one address")
            yield process, where, (host.address if where == "one address" else "127.0.0.1", at[1])


def tried(seconds, addresses, *enter):
    """What a stranger gets from addresses, where ends are waited for so long."""
    words = [*enter, sys.executable, "-I", "-S", "-", json.dumps([seconds, addresses])]
    return json.loads(subprocess.check_output(words, input=Path(outsider.__file__).read_bytes()))


def look(host, expected):
    """A host's sockets as the guide has them; waits longer where it has them otherwise."""
    found, seen, enter = list(set(sockets(host))), set(), ENTER.format(host).split()
    for seconds in (LONG_ENOUGH, PATIENCE):
        places = [at for *_, at in found]
        users = tried(seconds, places, *enter)
        others = [None if isinstance(at, str) else (host.address, at[1]) for at in places]
        outcomes = zip(users, tried(seconds, others), strict=True)
        shown = [(*one[:2], *both) for one, both in zip(found, outcomes, strict=True)]
        seen |= expected.intersection(shown)
        found = [one for one, row in zip(found, shown, strict=True) if row not in expected]
        if not found:
            break
    return seen.union(shown)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_socket_and_nothing_else_is_in_the_guide(hosts, environ, tmp_path, name):
    what, settings = SCENARIOS[name]
    for word in NEEDS.keys() & name.split(", "):
        require.need_module(NEEDS[word])
    words = [PROGRAM, what, tmp_path]
    if name in COMMANDS:
        python = stack("debian").python if what == "mpi" else sys.executable
        words = ["-m", "fiber.cli.main", *COMMANDS[name].split(), python, *words]
    # what is cut off is cut off sooner
    environ |= hosts.environ(slots=1) | settings | {"FIBER_TIME_SCALE": "0.3"}
    expected = {row for scenarios, row in rows() if name in scenarios}
    os.mkfifo(tmp_path / "go")
    with contextlib.ExitStack() as ends:
        go = ends.enter_context((tmp_path / "go").open("r+b", buffering=0))
        enter = ENTER.format(hosts.hosts[0]).split()
        program = Program(tmp_path, *words, environ=environ, enter=enter)
        ends.callback(program.close)
        for _ in range(1 if what in {"objects", "listeners"} else 2):
            while program.line() != "up":
                pass
        found = set().union(*(look(host, expected) for host in hosts.hosts))
        go.close()
        program.end()

    assert found == expected, f"the guide's table has other sockets of {name}"


def test_no_row_is_of_a_scenario_that_is_not_run():
    assert {name for scenarios, _ in rows() for name in scenarios} == set(SCENARIOS)
