"""The environment of jobs."""

from fiber._agent.supervisor.child import THREAD_COUNTS, environment
from fiber.model import JobSpec, ResourceRequest


def spec(**changes):
    return JobSpec(run_id="0badcafe", name="a", argv=("a",), **changes)


def test_a_job_inherits_and_its_spec_comes_on_top():
    inherited = {"A": "1", "B": "2", "C": "3"}
    asked = spec(env={"B": "x", "D": "y"}, unset_env=frozenset({"C", "D"}))

    assert environment(inherited, asked) == {"A": "1", "B": "x", "D": "y"}
    assert inherited == {"A": "1", "B": "2", "C": "3"}


def test_libraries_are_told_how_many_threads_they_may_start():
    asked = spec(resources=ResourceRequest(cpu=1.5))

    assert environment({}, asked) == dict.fromkeys(THREAD_COUNTS, "2")
    assert environment({}, spec(resources=ResourceRequest(cpu=0.1)))["OMP_NUM_THREADS"] == "1"


def test_what_the_user_said_about_threads_stays():
    asked = spec(resources=ResourceRequest(cpu=4), env={"MKL_NUM_THREADS": "7"})

    found = environment({"OMP_NUM_THREADS": "8"}, asked)

    assert found["OMP_NUM_THREADS"] == "8"
    assert found["MKL_NUM_THREADS"] == "7"
    assert found["OPENBLAS_NUM_THREADS"] == "4"


def test_nothing_is_said_about_threads_unasked():
    assert environment({}, spec()) == {}
