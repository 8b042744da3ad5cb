"""A program's first result waits for what is imported on the way, in its own process and a worker's."""

import json
import subprocess
import sys

#: each takes 5 to 40 ms, and nothing on the way to a first result needs it
NEEDLESS = {
    "attr",
    "cloudpickle",
    "cryptography",
    "decimal",
    "difflib",
    "importlib.metadata",
    "platform",
    "psutil",
    "pynng",
}
#: about a quarter above what there was when this was written
MOST = {"master": 400, "worker": 310}

PROGRAM = """
import json
import sys


def loaded(_):
    return sorted(sys.modules)


if __name__ == "__main__":
    import fiber

    with fiber.Pool(1) as pool:
        worker = pool.apply(loaded, (0,))
        print(json.dumps({"master": loaded(0), "worker": worker}))
"""


def test_a_pools_first_result_waits_for_no_needless_module(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    for process, modules in json.loads(done.stdout).items():
        assert NEEDLESS.intersection(modules) == set(), process
        assert len(modules) < MOST[process], process
