"""Programs that users write, unchanged: in plain pods with nothing set, and one outside the cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PI = Path(__file__).parents[4] / "examples" / "pi_estimation.py"

pytestmark = pytest.mark.timeout(400)

# Pool() makes a worker for each free CPU
CAPACITY = {"cpu": "6"}


def test_pi_is_estimated_by_a_pool(masters):
    code, lines = masters.wait(masters.start(str(PI)))

    assert code == 0, lines
    assert re.search(r"3\.1[34]", "\n".join(lines)), lines
    masters.cluster.wait_until_gone()


def test_pi_is_estimated_by_a_program_outside_the_cluster(tmp_path, kube, engine):
    settings = {
        "FIBER_BACKEND": "k8s",
        "FIBER_IMAGE": engine.image,
        "KUBECONFIG": str(kube.kubeconfig),
    }
    done = subprocess.run(
        [sys.executable, PI],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **settings},
        timeout=380,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"3\.1[34]", done.stdout), done.stdout
    # how fast that is, once, and what is better
    assert done.stderr.count("MB/s") == 1
    assert "fiber run -a" in done.stderr
    assert kube.objects("pods") == []
