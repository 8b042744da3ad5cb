"""Masters in plain pods: what their children inherit; deleted ones."""

import pytest

pytestmark = pytest.mark.timeout(400)

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
