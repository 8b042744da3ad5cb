"""Masters in plain pods: programs as they are, with nothing set; deleted ones."""

import pytest

pytestmark = pytest.mark.timeout(400)

NESTED = """
import os, platform, sys
import fiber

def host(_):
    return platform.node()

def parent(queue):
    with fiber.Pool(1) as pool:
        queue.put((platform.node(), pool.map(host, range(2))))

def say(words):
    print(words)
    sys.stderr.write("and to stderr\\n")

if __name__ == "__main__":
    queue = fiber.SimpleQueue()
    process = fiber.Process(target=parent, args=(queue,), name="The Parent")
    process.start()
    where, children = queue.get()
    process.join()
    teller = fiber.Process(target=say, args=("told from a pod",))
    teller.start()
    teller.join()
    print(fiber.get_backend().name, process.exitcode, teller.exitcode)
    print(len({platform.node(), where, *children}), where.startswith("the-parent-"))
"""

LOOKS = """
import os
import fiber

def look(queue):
    queue.put((open("/words/word").read(), os.environ["WORD"]))

if __name__ == "__main__":
    queue = fiber.SimpleQueue()
    process = fiber.Process(target=look, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""

WAITS = """
import time
import fiber

if __name__ == "__main__":
    children = [fiber.Process(target=time.sleep, args=(600,)) for _ in range(2)]
    for child in children:
        child.start()
    print("started", [child.pid for child in children], flush=True)
    time.sleep(600)
"""


def test_processes_of_processes_are_pods_too_and_what_they_write_is_shown(masters):
    code, lines = masters.wait(masters.start(NESTED))

    assert code == 0, lines
    assert "told from a pod" in lines
    # what children write comes when it comes
    assert "and to stderr" in lines
    lines.remove("and to stderr")
    assert lines[-2:] == ["k8s 0 0", "3 True"], lines
    masters.cluster.wait_until_gone()


def test_children_inherit_what_their_parents_pod_has(masters, kube):
    kube.create("configmaps", {"metadata": {"name": "words"}, "data": {"word": "inherited"}})
    name = masters.start(
        LOOKS,
        env={"WORD": "one"},
        mounts=[{"name": "words", "mountPath": "/words"}],
        volumes=[{"name": "words", "configMap": {"name": "words"}}],
    )
    code, lines = masters.wait(name)

    assert (code, lines[-1]) == (0, "('inherited', 'one')"), lines


@pytest.mark.parametrize("how", ["deleted", "deleted by force"])
def test_a_master_that_is_deleted_takes_all_with_it(masters, kube, how):
    name = masters.start(WAITS, env={"FIBER_LEASE": "3"})
    masters.wait_for_workers(2)

    kube.delete_pod(name, grace=1 if how == "deleted" else 0)

    masters.cluster.wait_until_gone()
