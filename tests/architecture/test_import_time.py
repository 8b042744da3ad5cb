"""``import fiber`` is light, and what a program's first result waits for is no more than it was."""

import json
import sys

from commands import ran

HEAVY = {
    "click",
    "cryptography",
    "docker",
    "fiber_docker",
    "fiber_k8s",
    "fiber_local",
    "fiber_slurm",
    "fiber_ssh",
    "kubernetes",
    "numpy",
    "paramiko",
    "platformdirs",
    "psutil",
    "pynng",
    "rich",
    "typing",
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


#: each takes 5 to 40 ms, and nothing on the way to a first result needs it
NEEDLESS = {
    "attr",
    "cloudpickle",
    "cryptography",
    "decimal",
    "difflib",
    "fiber._watch",
    "fiber.watching",
    "importlib.metadata",
    "platform",
    "psutil",
    "pynng",
    "rich",
    "sysconfig",
}
#: the program needs no function that runs modules, which workers do need
NEEDLESS_IN_MASTER = NEEDLESS | {"runpy"}
#: no worker needs them, and each would import them
NEEDLESS_IN_WORKERS = NEEDLESS | {"logging", "secrets", "shutil", "tempfile", "traceback"}
#: nothing before the supervisor is started needs them
NEEDLESS_AT_START = NEEDLESS | {"fiber._base.threads", "multiprocessing", "pathlib", "pickle"}
#: about a quarter above what there was when this was written; "start" is what the program has when
#: it starts the process that forks its workers, which is what everything waits for
MOST = {"import": 75, "start": 120, "master": 285, "worker": 250}

PROGRAM = """
import gc, json, sys

found, collections = {}, []

def loaded(_):
    return sorted(sys.modules)

def audit(event, _):
    if event == "subprocess.Popen":
        found.setdefault("start", loaded(0))
        collections.clear()

if __name__ == "__main__":
    sys.addaudithook(audit)
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    import fiber

    with fiber.Pool(1) as pool:
        found["collections"], found["is_enabled"] = len(collections), gc.isenabled()
        found["worker"] = pool.apply(loaded, (0,))
        found["master"] = loaded(0)
        print(json.dumps(found))
"""

#: preloaded by a supervisor, it notes what each of its forks has from it
FORKED = """
import os, sys

there = set()
os.register_at_fork(before=lambda: there.update(sys.modules))
"""
STARTED = """
import json, sys

def tell(end, lock):
    import forked
    with lock:
        end.send(sorted(set(sys.modules) - forked.there))

if __name__ == "__main__":
    import fiber
    fiber.set_forkserver_preload(["forked"])
    here, there = fiber.Pipe()
    process = fiber.Process(target=tell, args=(there, fiber.Lock()))
    process.start()
    print(json.dumps(here.recv()))
    process.join()
"""


def python(*arguments):
    return ran([sys.executable, "-W", "ignore", *arguments], check=True)


def test_it_opens_starts_and_changes_nothing_and_loads_no_heavy_module():
    found = json.loads(python("-B", "-c", WATCH).stdout)

    assert found["events"] == []
    assert found["descriptors"] == 0
    assert found["threads"] == ["MainThread"]
    assert HEAVY & {name.split(".")[0] for name in found["modules"]} == set()
    assert len(found["modules"]) < MOST["import"]


def test_a_pools_first_result_waits_for_no_needless_module_and_no_garbage(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    found = json.loads(python(script).stdout)

    assert found.pop("collections") == 0
    assert found.pop("is_enabled")
    assert found.keys() == {"start", "worker", "master"}
    needless_in = {
        "start": NEEDLESS_AT_START,
        "worker": NEEDLESS_IN_WORKERS,
        "master": NEEDLESS_IN_MASTER,
    }
    for process, modules in found.items():
        needless = needless_in[process]
        assert needless.intersection(modules) == set(), process
        assert len(modules) < MOST[process], process


def test_a_started_process_finds_all_that_it_needs_imported_by_its_supervisor(tmp_path):
    (tmp_path / "forked.py").write_text(FORKED)
    script = tmp_path / "program.py"
    script.write_text(STARTED)

    found = json.loads(python(script).stdout)

    assert found == []
