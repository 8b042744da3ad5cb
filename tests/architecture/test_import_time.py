"""``import fiber`` is light: it opens nothing, starts nothing and loads no heavy module."""

import json
import re
import subprocess
import sys

import pytest

HEAVY = {
    "click",
    "cryptography",
    "docker",
    "fiber_docker",
    "fiber_k8s",
    "fiber_local",
    "fiber_ssh",
    "kubernetes",
    "numpy",
    "paramiko",
    "platformdirs",
    "psutil",
    "pynng",
    "rich",
}

WATCH = """
import json, os, sys, threading

seen = []

def audit(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else 0
        if writing or (isinstance(mode, str) and set(mode) & set("wax+")):
            seen.append(f"open for writing: {path}")
    elif event.startswith(("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn",
                           "os.mkdir", "os.putenv", "_thread.start", "signal.")):
        seen.append(event)

sys.addaudithook(audit)
before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
import fiber
after = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
print(json.dumps({
    "events": seen,
    "descriptors": len(after) - len(before),
    "threads": [thread.name for thread in threading.enumerate()],
    "modules": sorted(sys.modules),
}))
"""


def python(*arguments):
    # -P and isolation from the environment, so that what is measured is what users have
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )


def test_it_opens_starts_and_changes_nothing():
    found = json.loads(python("-B", "-c", WATCH).stdout)

    assert found["events"] == []
    assert found["descriptors"] == 0
    assert found["threads"] == ["MainThread"]


def test_it_loads_no_heavy_module():
    found = json.loads(python("-B", "-c", WATCH).stdout)

    assert HEAVY & {name.split(".")[0] for name in found["modules"]} == set()


@pytest.mark.parametrize("sdk", ["docker", "kubernetes", "paramiko", "fiber_ssh"])
def test_an_sdk_that_it_imports_is_noticed(sdk, tmp_path):
    # whether it is installed or not: what is looked at is the name
    (tmp_path / sdk).mkdir()
    (tmp_path / sdk / "__init__.py").write_text("")
    watch = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {sdk}\n{WATCH}"

    found = json.loads(python("-B", "-c", watch).stdout)

    assert HEAVY & {name.split(".")[0] for name in found["modules"]} == {sdk}


def test_it_is_quick(record_property, request, capsys):
    def once():
        report = python("-X", "importtime", "-c", "import fiber").stderr
        lines = re.findall(r"^import time:\s+\d+ \|\s+(\d+) \| fiber$", report, re.MULTILINE)
        return int(lines[-1]) / 1000

    python("-c", "import fiber")  # byte code is compiled once, not at each start
    milliseconds = min(once() for _ in range(3))

    record_property("import_fiber_ms", milliseconds)
    text = f"\nimport fiber: {milliseconds:.0f} ms (the aim on a quiet machine is below 150)"
    with capsys.disabled():
        request.config.get_terminal_writer().line(text)
    # a bound for a busy machine: what it must catch is a heavy import, at several hundred
    assert milliseconds < 600
