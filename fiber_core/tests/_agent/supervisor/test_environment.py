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


def test_thread_counts_of_libraries_are_set():
    asked = spec(resources=ResourceRequest(cpu=1.5))

    assert environment({}, asked) == dict.fromkeys(THREAD_COUNTS, "2")
    assert environment({}, spec(resources=ResourceRequest(cpu=0.1)))["OMP_NUM_THREADS"] == "1"


def test_thread_counts_of_the_user_stay():
    asked = spec(resources=ResourceRequest(cpu=4), env={"MKL_NUM_THREADS": "7"})

    found = environment({"OMP_NUM_THREADS": "8"}, asked)

    assert found["OMP_NUM_THREADS"] == "8"
    assert found["MKL_NUM_THREADS"] == "7"
    assert found["OPENBLAS_NUM_THREADS"] == "4"


def test_thread_counts_are_not_set_without_a_cpu_limit():
    assert environment({}, spec()) == {}
