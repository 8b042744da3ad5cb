"""``fiber ring apply`` on this machine: manifests in the shapes of the operator's documentation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import ran
from mpi_stacks import stack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
#: in place of Horovod's own: it asks the script that it is told, as often as that one does
HOROVODRUN = """#!/bin/sh
while [ "$1" != "--host-discovery-script" ]; do shift; done
for turn in 1 2 3; do "$2" || exit 9; done
"""


@pytest.fixture
def apply(environ, tmp_path):
    def run(manifest):
        path = tmp_path / "job.json"
        path.write_text(json.dumps(manifest))
        words = [sys.executable, "-m", "fiber.cli.main", "ring", "apply", path]
        done = ran(words, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def job(name, launcher, worker, **spec):
    def replicas(container, count):
        return {"replicas": count, "template": {"spec": {"containers": [container]}}}

    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {"Launcher": replicas(launcher, 1), "Worker": replicas(worker, 2)},
            **spec,
        },
    }


def test_pi(apply):
    debian = stack("debian")
    program = [debian.python, str(ROOT / "examples" / "mpi_pi.py")]
    limits = {"limits": {"cpu": 1, "memory": "1Gi"}}
    manifest = job(
        "pi",
        {
            "image": "me/pi",
            "command": ["mpirun"],
            "args": ["-n", "2", *program],
            "securityContext": {"runAsUser": 1000},
            "resources": limits,
        },
        {"image": "me/pi", "command": ["/usr/sbin/sshd"], "args": ["-De"], "resources": limits},
        slotsPerWorker=1,
        sshAuthMountPath="/home/mpiuser/.ssh",
    )

    code, lines, errors = apply(manifest)

    assert code == 0, errors
    assert any("3.14" in line for line in lines), lines
    assert "not supported: spec.mpiReplicaSpecs.Launcher" in errors
    assert ".securityContext" in errors
    assert "image, on this backend" in errors


def test_an_elastic_launcher_finds_its_script_where_the_manifest_says(apply, tmp_path):
    stack("debian")
    launcher = tmp_path / "horovodrun"
    launcher.write_text(HOROVODRUN)
    launcher.chmod(0o755)
    script = ["--host-discovery-script", "/etc/mpi/discover_hosts.sh"]
    words = [str(launcher), "-np", "2", "--min-np", "1", "--max-np", "4", *script, "python", "x.py"]

    code, lines, errors = apply(job("elastic", {"command": words}, {}, slotsPerWorker=2))

    assert code == 0, errors
    assert lines == ["elastic-worker-0:2", "elastic-worker-1:2"] * 3
