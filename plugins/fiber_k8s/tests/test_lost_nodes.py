"""Lost nodes confirm no end: jobs that were to end on them are reported as lost."""

import time

import pytest

from cluster import Act, Cluster
from fiber.model import JobState, Reason, ReasonKind
from k8s_site import Site, set_durations
from wire_world import until

LOST = Reason(ReasonKind.NODE_LOST)


@pytest.fixture
def site(scripts):
    """A cluster of one node, which tests lose."""
    with Cluster.start(script=scripts, nodes=["only"]) as cluster:
        site = Site(cluster, scripts)
        yield site
        cluster.node_back("only")
        site.close()


@pytest.fixture
def patience(backend):
    """Few seconds for which a node may be silent."""
    set_durations(backend, unconfirmed=0.2)


def stranded(site, backend):
    """A job whose pod is bound to a node that is lost, and never runs."""
    site.cluster.node_silent("only")
    job = site.start(backend)
    backend.recorder.until(job, lambda status: status.host == "only")
    return job


def reads_a_pod(call):
    return call.verb == "get" and call.resource == "pods"


def test_a_pod_that_never_ran_is_lost_once_it_was_to_end(site, backend, patience, caplog):
    job = stranded(site, backend)

    backend.kill(job)

    status = backend.recorder.end(job)
    assert (status.state, status.reason, status.host) == (JobState.FAILED, LOST, "only")
    assert "only does not confirm it" in status.message
    assert backend.status([job])[0] == status
    assert list(backend.logs(job, follow=True)) == []
    assert site.cluster.get("pods", job.id)["metadata"]["deletionTimestamp"]
    assert f"pod {job.id} is given up: it was to end" in caplog.text


def test_closing_does_not_wait_for_it_nor_is_it_reported_again_when_the_node_is_back(
    site, backend, patience
):
    another = site.open()
    set_durations(another, deletion=3600.0, unconfirmed=0.2)
    job, theirs = stranded(site, backend), stranded(site, another)
    for owner, lost in ((backend, job), (another, theirs)):
        owner.kill(lost)
        owner.recorder.end(lost)

    another.close()
    assert site.cluster.get("pods", theirs.id) is not None

    site.cluster.node_back("only")
    site.cluster.wait_for("pods", lambda pods: not pods)
    site.start_running(backend)
    assert len([one for one in backend.recorder.of(job) if one.state.is_terminal]) == 1


def test_a_pod_that_ran_has_the_whole_of_its_grace_and_less_where_that_is_shortened(
    site, backend, patience
):
    job = site.start_running(backend, Act(on_term=None))
    site.cluster.node_silent("only")
    site.cluster.delete_pod(job.id, grace=3600)
    deadlines = backend._lifecycle._timers._calls
    until(lambda: (job.id, "leaving") in deadlines)
    assert deadlines[job.id, "leaving"].when > time.monotonic() + 3000

    backend.kill(job)

    assert backend.recorder.end(job).reason == LOST


def test_a_cluster_that_cannot_be_asked_proves_nothing(site, backend, patience):
    job = stranded(site, backend)
    refusal = site.cluster.refuse(503, matching=reads_a_pod, times=3)

    backend.kill(job)

    assert backend.recorder.end(job).reason == LOST
    assert refusal.count == 3


def test_what_ends_while_the_cluster_is_asked_has_ended_as_it_did(site, backend, patience):
    job = site.start_running(backend, Act(on_term=4))
    site.cluster.node_silent("only")
    with site.cluster.refuse(503, matching=reads_a_pod) as refusal:
        site.cluster.delete_pod(job.id, grace=1)
        until(lambda: refusal.count)
        site.cluster.node_back("only")

        assert backend.recorder.end(job).exit_code == 4


PROGRAM = """
    import fiber
    from fiber._base import values

    if __name__ == "__main__":
        with fiber.Pool(2):
            # nothing else is shorter: the core gives up what the backend has not, a little later
            client = fiber.get_backend()._client
            client.timing = values.evolve(client.timing, unconfirmed=1.0)
            fiber.Process(target=print, daemon=True).start()
        print("ended", flush=True)
"""


@pytest.mark.timeout(240)
def test_a_program_whose_pods_never_ran_ends(site, tmp_path):
    site.cluster.node_silent("only")
    done = site.run_program(tmp_path, PROGRAM)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "Traceback" not in done.stderr
    # a worker that no node had by then is none to be given up
    given_up = [line for line in done.stderr.splitlines() if "is given up: it was to end" in line]
    assert any("pod poolworker-" in line for line in given_up), done.stderr
    assert any("pod process-" in line for line in given_up), done.stderr
