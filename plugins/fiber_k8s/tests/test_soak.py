"""Whoever starts first after an outage of a real API server leaves living programs alone.

The full count (``tox -e soak``) is 80 programs in pods, each in a namespace of its own, and four
outages of 75 s: no run is removed, no program is lost, all results are right, nothing is left.
``K8S_BINARIES`` names the folder with the cluster's programs, see ``control_plane.py``.
"""

import contextlib
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import control_plane
import dockerd
import soak
from fiber.backend_parts.containers import timestamp
from fiber_k8s.run_objects import LEASES
from k8s_trials import Trial
from require import need
from waiting import until

#: Leases look expired after 60 s
AWAY = 75.0
#: programs that live through one outage
SIZE = 20
BINARIES = os.environ.get("K8S_BINARIES", "")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    why_not = None if BINARIES else "K8S_BINARIES names no folder with kube-apiserver"
    need("kubernetes", why_not or (None if shutil.which("etcd") else "etcd not found"))
    need("docker", dockerd.missing())
    folder = tmp_path_factory.mktemp("plane")
    with control_plane.started(Path(BINARIES).resolve(), folder) as running:
        yield running


def leases(plane):
    """All programs' Leases; none while the API server does not answer."""
    with contextlib.suppress(OSError):
        return plane.ask(f"/apis/{LEASES}/leases?labelSelector=fiber/run")["items"]
    return []


def note_renewals(plane, trials, began):
    """Wait until each program has renewed its Lease, within a minute; the seconds are noted."""
    waiting = {one.namespace.name: one for one in trials}
    while waiting and time.time() < began + 60:
        for lease in leases(plane):
            key, one = f"leases {lease['metadata']['name']}", lease["metadata"]["namespace"]
            is_new = timestamp(lease["spec"]["renewTime"]) > began - 15
            if is_new and one in waiting and key in waiting[one].before:
                waiting.pop(one).current.note(renewed=round(time.time() - began, 2))
        # the API server is busy enough without a watch of all namespaces
        time.sleep(0.1)


def live_through(plane, trials, number, together):
    """An outage, in the way of a signal."""
    alone = [one for one in trials if one.way == "program"]
    others = [one for one in trials if one not in alone]
    began = time.monotonic()
    with plane.outage(number):
        # newcomers of the last half minute still wait when it ends
        for position, one in enumerate(alone):
            moment = AWAY - 30 + 25 * (position + one.current.rng.random()) / len(alone)
            time.sleep(max(0.0, began + moment - time.monotonic()))
            one.first.tell("go")
        time.sleep(began + AWAY - time.monotonic())
        for one in others:
            # a stopped server has their requests, with those of the programs, when it goes on
            one.first.tell("go" if number == signal.SIGSTOP else "wait")
        time.sleep(1)
        for one in trials:
            one.hold()
    until(lambda: leases(plane))
    began = time.time()
    released = together.map(Trial.release, trials)
    note_renewals(plane, trials, began)
    # raises what went wrong
    list(released)


def judge(trial):
    """What is wrong with a trial; the others are judged too."""
    try:
        trial.judge()
    except Exception as error:
        return trial.current, error, trial.masters.output(trial.master)
    finally:
        print(trial.current.seed, trial.current.facts, flush=True)
    return None


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 900)
def test_living_programs_outlast_whoever_starts_first_after_an_outage(plane, tmp_path):
    for batch in soak.batches("outages of an API server", 80, SIZE, least=4):
        number = [signal.SIGKILL, signal.SIGSTOP][batch[0].seed // SIZE % 2]
        with contextlib.ExitStack() as stack:
            together = stack.enter_context(ThreadPoolExecutor(SIZE))
            trials = []
            for current in batch:
                trials.append(Trial(plane, current, tmp_path))
                stack.callback(trials[-1].close)
            for one in trials:
                one.wait_for_maps(1)
                one.current.note(outage=number.name)
            list(together.map(Trial.prepare, trials))
            live_through(plane, trials, number, together)
            wrong = [words for words in together.map(judge, trials) if words]
            list(together.map(Trial.close, trials))
            assert wrong == []
