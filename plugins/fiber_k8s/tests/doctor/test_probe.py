"""The probe's facts; it needs nothing but Python."""

import contextlib
import io
import json
import subprocess
import sys
import threading
from pathlib import Path

from fiber_k8s.doctor import probe
from fiber_k8s.doctor.probe_pod import listening

RIGHTS = json.dumps([["create", "", "pods", ""]])


def told(text):
    found = {}
    for line in text.splitlines():
        assert line.startswith(probe.LINE_PREFIX), text
        found.update(json.loads(line.removeprefix(probe.LINE_PREFIX)))
    return found


def run(*words, python=(sys.executable,)):
    done = subprocess.run(
        [*python, "-c", Path(probe.__file__).read_text(), RIGHTS, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


def test_python_fiber_and_the_account_are_reported():
    with listening("127.0.0.1") as port:
        found = run("dial", "127.0.0.1", str(port))

    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["executable"] == sys.executable
    assert found["versions"]["fiber-core"]
    assert found["failure"] == ""
    # no pod's account is here
    assert found["allowed"] is None
    assert "token" in found["account"]
    assert found["dialled"] == ""


def test_a_python_without_fiber_reports_what_is_missing():
    found = run("dial", "127.0.0.1", "1", python=(sys.executable, "-I", "-S"))

    assert found["versions"] == {"fiber-core": "", "fiber-k8s": ""}
    assert found["dialled"] != ""


def test_a_listener_is_dialled():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        thread = threading.Thread(target=probe.listen, args=(0.5,))
        thread.start()
        while not said.getvalue().endswith("\n"):
            thread.join(0.01)
        assert probe.dial("127.0.0.1", told(said.getvalue())["port"]) == ""
        thread.join()

    assert "refused" in probe.dial("127.0.0.1", told(said.getvalue())["port"])


def test_somebody_else_is_noticed(monkeypatch):
    monkeypatch.setattr("fiber_k8s.doctor.probe_pod.ANSWER", b"other\n")
    with listening("127.0.0.1") as port:
        assert "somebody else answers" in probe.dial("127.0.0.1", port)
