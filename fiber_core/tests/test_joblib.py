"""The backend for joblib: results, errors, batches, nesting, generators and worker deaths."""

import gc
import multiprocessing
import os

import pytest

import fiber
from fiber.exceptions import WorkerCrashedError
from pool_tasks import die_once, fail_at, nap, note, pid, square
from require import need_module
from waiting import until

try:
    import joblib
except ImportError:
    # tests skip, or fail where it is required
    joblib = None

pytestmark = pytest.mark.usefixtures("shared_runtime")


def backend_inside():
    backend, _ = joblib.parallel.get_active_backend()
    return type(backend).__name__, joblib.effective_n_jobs(2)


def nested(n):
    names = joblib.Parallel(n_jobs=2)(joblib.delayed(backend_inside)() for _ in range(2))
    inside, here = names[0], backend_inside()
    squares = joblib.Parallel(n_jobs=2)(joblib.delayed(square)(x) for x in range(n))
    return here, inside, squares, pid()


def threads_allowed():
    return os.environ.get("OMP_NUM_THREADS")


@pytest.fixture(scope="module", autouse=True)
def registered():
    need_module("joblib")
    from fiber.joblib import register

    register()


@pytest.fixture(autouse=True)
def _collected():
    yield
    # the last Parallel of a test may be part of a cycle with its exception
    gc.collect()


@pytest.fixture
def in_fiber():
    with joblib.parallel_config(backend="fiber", n_jobs=2):
        yield


def run(function, *iterables, **options):
    return joblib.Parallel(**options)(
        joblib.delayed(function)(*x) for x in zip(*iterables, strict=True)
    )


@pytest.fixture(scope="class")
def workers(registered, shared_runtime):
    """Workers for all tests of a class, which end none."""
    with joblib.parallel_config(backend="fiber", n_jobs=2):
        until(lambda: len(set(run(pid, range(20)))) == 2)
        yield


@pytest.mark.usefixtures("workers")
class TestResults:
    @pytest.mark.parametrize("count", [0, 500])
    def test_they_come_in_order(self, count):
        offset = 10
        assert run(lambda x: x + offset, range(count)) == list(range(10, 10 + count))

    @pytest.mark.parametrize("batch_size", [1, 7, "auto"])
    def test_batches_of_any_size_do_the_same(self, batch_size):
        assert run(square, range(50), batch_size=batch_size) == [x * x for x in range(50)]

    @pytest.mark.parametrize("kind", ["generator", "generator_unordered"])
    def test_a_generator_yields_them_as_they_are_asked_for(self, kind):
        results = run(square, range(50), return_as=kind)
        found = [next(results), *results]
        assert (found if kind == "generator" else sorted(found)) == [x * x for x in range(50)]

    def test_the_same_workers_do_one_call_after_the_other(self):
        with joblib.Parallel() as parallel:
            found = [parallel(joblib.delayed(pid)() for _ in range(20)) for _ in range(3)]
        found.append(run(pid, range(20)))
        pids = {worker for workers in found for worker in workers}
        assert len(pids) <= 2
        assert os.getpid() not in pids

    def test_parallel_calls_inside_a_task_are_threads_and_then_sequential(self):
        (here, inside, squares, worker), *_ = run(nested, [4, 4])
        assert here[0] == "ThreadingBackend"
        assert inside[0] == "SequentialBackend"
        assert squares == [0, 1, 4, 9]
        assert worker != os.getpid()


class TestWorkers:
    @pytest.mark.parametrize("n_jobs", [None, -1])
    def test_without_a_number_there_are_as_many_as_the_backend_has_cpus(self, n_jobs):
        with joblib.parallel_config(backend="fiber", n_jobs=n_jobs):
            assert joblib.effective_n_jobs() == fiber.cpu_count()

    def test_numbers_below_zero_leave_some_cpus_free(self, monkeypatch):
        monkeypatch.setattr(fiber.joblib, "cpu_count", lambda: 8)
        backend = fiber.joblib.FiberBackend()
        assert [backend.effective_n_jobs(n) for n in (-1, -2, -20, 3, None)] == [8, 7, 1, 3, 1]
        with pytest.raises(ValueError, match="no meaning"):
            backend.effective_n_jobs(0)

    def test_one_job_runs_in_the_program(self):
        with joblib.parallel_config(backend="fiber", n_jobs=1):
            assert set(run(pid, range(3))) == {os.getpid()}

    def test_they_end_with_the_context(self):
        before = set(fiber.active_children())
        with joblib.parallel_config(backend="fiber", n_jobs=2):
            run(pid, range(4))
        until(lambda: not set(fiber.active_children()) - before)

    def test_numerical_libraries_get_so_many_threads(self):
        with joblib.parallel_config(backend="fiber", n_jobs=2, inner_max_num_threads=3):
            found = joblib.Parallel()(joblib.delayed(threads_allowed)() for _ in range(4))
        assert set(found) == {"3"}

    def test_options_of_the_executor_may_be_given(self, tmp_path):
        with (
            joblib.parallel_config(backend="fiber", n_jobs=2, error_handling=False),
            pytest.raises(WorkerCrashedError, match="must not run twice"),
        ):
            run(die_once, [str(tmp_path / "flag")] * 5, batch_size=1)


class TestErrors:
    def test_the_exception_of_a_task_is_raised_and_what_follows_works(self, in_fiber):
        with joblib.Parallel() as parallel:
            with pytest.raises(ValueError, match="bad 3"):
                parallel(joblib.delayed(fail_at)(x, 3) for x in range(20))
            assert parallel(joblib.delayed(square)(x) for x in range(3)) == [0, 1, 4]
        assert run(square, range(5)) == [0, 1, 4, 9, 16]

    def test_an_error_ends_the_others_soon(self, in_fiber, tmp_path):
        noted = tmp_path / "told"
        calls = [joblib.delayed(fail_at)(3, 3), joblib.delayed(nap)(60)]
        calls += [joblib.delayed(note)(str(noted), n) for n in range(20)]
        with pytest.raises(ValueError, match="bad 3"):
            joblib.Parallel(batch_size=1, pre_dispatch="all")(calls)

    def test_a_timeout_is_an_error(self, in_fiber):
        with pytest.raises(multiprocessing.TimeoutError):
            run(nap, [60, 60], timeout=0.3)

    def test_a_killed_workers_tasks_run_again(self, in_fiber, tmp_path):
        assert run(die_once, [str(tmp_path / "flag")] * 10) == ["survived"] * 10

    def test_a_generator_may_be_left_early(self, in_fiber):
        results = run(nap, [0.01] * 50, return_as="generator")
        assert next(results) == 0.01
        with pytest.warns(UserWarning, match="have been cancelled"):
            results.close()
        assert run(square, range(3)) == [0, 1, 4]
