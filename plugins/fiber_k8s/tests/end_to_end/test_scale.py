"""A pool of many pods: time until its workers are up, and calls of the API server.

The full count (``SOAK=1``) is 100 workers.
"""

import collections

import pytest

import soak

POOL = """
import platform, sys, time
import fiber

def where(_):
    time.sleep(0.05)
    return platform.node()

if __name__ == "__main__":
    count, since = int(sys.argv[1]), time.monotonic()
    with fiber.Pool(count) as pool:
        found = {pool.apply(where, (0,))}
        print("first", time.monotonic() - since)
        while len(found) < count:
            found.update(pool.map(where, range(4 * count), chunksize=1))
        print("last", time.monotonic() - since, flush=True)
"""
#: what a program asks besides: itself, its Lease and its Secret, the stream of events, the sweep
BESIDES = 40

pytestmark = pytest.mark.timeout(600)

CAPACITY = {"cpu": "256", "memory": "256Gi", "pods": "200"}


def test_a_worker_costs_a_create_and_a_delete(masters, kube, record_property):
    count = soak.count(100, least=6)
    kube.forget_requests()
    code, lines = masters.wait(masters.start(POOL, str(count)), timeout=400)
    assert code == 0, lines
    masters.wait_until_gone()

    # the Lease is renewed as time goes by, whatever the number of workers
    calls = collections.Counter(
        (call.verb, call.resource)
        for call in kube.requests
        if call.user != "admin" and (call.verb, call.resource) != ("patch", "leases")
    )
    for words in map(str.split, lines):
        record_property(f"seconds until the {words[0]} of {count} workers", float(words[1]))
    record_property("calls", str(sorted(calls.items())))
    assert calls["create", "pods"] == count
    assert sum(calls.values()) <= 2 * count + BESIDES, calls
