"""A name or id on the command line selects one job, or the error lists the candidates."""

import pytest

from fiber.cli.show import find_job, list_jobs
from fiber.exceptions import BackendUnavailableError, FiberError, UnknownJobError
from fiber.model import Job, JobSpec
from fiber.testing import FakeBackend, programs


def job(ident, name="job"):
    return Job(id=ident, name=name, run_id="00000000", backend="fake")


class TestFinding:
    def test_the_beginning_of_an_id_is_enough_where_it_is_one_jobs_alone(self):
        jobs = [job("ab12"), job("ac34")]

        assert find_job(jobs, "ab") is jobs[0]
        assert find_job(jobs, "ac34") is jobs[1]

    def test_a_whole_id_is_never_ambiguous(self):
        jobs = [job("ab"), job("ab12"), job("x", name="ab")]

        assert find_job(jobs, "ab") is jobs[0]

    def test_a_name_means_its_job(self):
        jobs = [job("ab12", name="train"), job("cd34", name="train-2")]

        assert find_job(jobs, "train") is jobs[0]

    def test_an_ambiguous_word_lists_the_candidates(self):
        jobs = [job("ab12", name="one"), job("ab34", name="two")]

        with pytest.raises(FiberError, match=r"2 jobs: ab12 \(one\), ab34 \(two\); give more"):
            find_job(jobs, "ab")

    def test_many_candidates_are_cut_short(self):
        jobs = [job(f"a{n:02}") for n in range(25)]

        with pytest.raises(FiberError, match=r"25 jobs: a00 .* a09 \(job\) and 15 more"):
            find_job(jobs, "a")

    def test_no_candidate_is_an_unknown_job(self):
        with pytest.raises(UnknownJobError, match="'zz'; 'fiber ps -a' lists"):
            find_job([job("ab12")], "zz")


class TestListing:
    @pytest.fixture
    def backend(self, platform):
        made = FakeBackend(platform=platform)
        yield made
        made.close()

    @staticmethod
    def submit(backend, run_id):
        spec = JobSpec(run_id=run_id, name="x", argv=programs.sleep_forever())
        return backend.submit(spec)

    def test_jobs_come_oldest_first_and_by_run(self, backend):
        jobs = [self.submit(backend, run) for run in ("00000001", "00000002", "00000001")]

        assert [item.job for item in list_jobs(backend)] == jobs
        assert [item.job for item in list_jobs(backend, "00000001")] == [jobs[0], jobs[2]]

    def test_a_job_that_is_removed_meanwhile_is_left_out(self, backend, monkeypatch):
        gone, there = self.submit(backend, "00000001"), self.submit(backend, "00000002")
        listed = backend.list()
        monkeypatch.setattr(backend, "list", lambda _: listed)
        backend.cleanup("00000001")

        assert [item.job for item in list_jobs(backend)] == [there]
        assert gone in listed

    def test_a_platform_that_does_not_answer_is_an_error(self, backend, platform):
        platform.available = False

        with pytest.raises(BackendUnavailableError):
            list_jobs(backend)
