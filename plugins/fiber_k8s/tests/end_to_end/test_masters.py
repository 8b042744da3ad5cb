"""Masters in plain pods that are deleted."""

import pytest

pytestmark = pytest.mark.timeout(400)

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


@pytest.mark.parametrize("how", ["deleted", "deleted by force"])
def test_a_master_that_is_deleted_takes_all_with_it(masters, kube, how):
    name = masters.start(WAITS, env={"FIBER_LEASE": "3"})
    masters.wait_for_workers(2)

    kube.delete_pod(name, grace=1 if how == "deleted" else 0)

    masters.cluster.wait_until_gone()
