"""What a program hands down to the programs that it starts, its processes have as well."""

import sys

import pytest

from commands import ran

PROGRAM = """
import os, resource, time
import fiber

LIMITS = [resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE]

def attributes():
    umask = os.umask(0)
    os.umask(umask)
    limits = [resource.getrlimit(one) for one in LIMITS]
    return umask, os.nice(0), os.sched_getaffinity(0), limits, time.tzname

def tell(queue):
    queue.put(attributes())

def told():
    queue = fiber.SimpleQueue()
    fiber.Process(target=tell, args=(queue,)).start()
    return queue.get()

if __name__ == "__main__":
    assert told() == attributes()
    before = attributes()
    os.umask(0o057)
    os.nice(3)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for one, value in zip(LIMITS, (2**30, 200, 0)):
        resource.setrlimit(one, (value, resource.getrlimit(one)[1]))
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    changed = attributes()
    assert told() == changed
    with fiber.Pool(1) as pool:
        assert pool.apply(attributes) == changed
    print(before[0] != changed[0], before[3] != changed[3], changed[4][0])
"""


@pytest.mark.one_host("it has its parent's attributes")
def test_processes_have_what_the_program_has_changed_since_the_first_of_them(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = ran([sys.executable, "program.py"], cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True True JST\n", "")
