"""What is read of squeue, and the command line of sbatch: without a cluster."""

from pathlib import Path

import pytest

from fiber.backend_parts.batch.system import Batch, Phase
from fiber.exceptions import ConfigError
from fiber.model import JobSpec, Reason, ReasonKind, ResourceRequest
from fiber_slurm.config import SlurmConfig
from fiber_slurm.options import submission
from fiber_slurm.rows import counts_of, read_rows

RUN = "0badcafe"


def rows(*fields):
    """Rows of one job whose first fields are these."""
    rest = ("17", "RUNNING", "n1", f"fiber-{RUN}", "0", "UNLIMITED", "17", "None")
    found = (*fields, *rest[len(fields) :])
    return list(read_rows("".join(f"{field}\x1f" for field in found) + "\n"))


PLAIN = SlurmConfig()


def words(config=PLAIN, count=1, **more):
    spec = JobSpec(run_id=RUN, name="a worker/№1", argv=("x",), **more)
    batch = Batch(name=f"fiber-{RUN}", script="", specs=(spec,) * count, output=Path("/f/%x"))
    return submission(batch, config)


class TestRows:
    @pytest.mark.parametrize(
        "state, phase, kind",
        [
            ("PENDING", Phase.WAITING, None),
            ("CONFIGURING", Phase.PLACED, None),
            ("RUNNING", Phase.PLACED, None),
            ("SUSPENDED", Phase.SUSPENDED, None),
            ("COMPLETING", Phase.ENDING, None),
            ("COMPLETED", Phase.ENDED, None),
            ("FAILED", Phase.ENDED, None),
            ("TIMEOUT", Phase.ENDED, ReasonKind.TIME_LIMIT),
            ("DEADLINE", Phase.ENDED, ReasonKind.TIME_LIMIT),
            ("NODE_FAIL", Phase.ENDED, ReasonKind.NODE_LOST),
            ("PREEMPTED", Phase.ENDED, ReasonKind.PREEMPTED),
            ("OUT_OF_MEMORY", Phase.ENDED, ReasonKind.OOM),
            ("CANCELLED", Phase.ENDED, ReasonKind.CANCELLED),
            ("A_STATE_OF_A_LATER_SLURM", Phase.ENDED, None),
        ],
    )
    def test_every_state_has_its_phase_and_reason(self, state, phase, kind):
        (row,) = rows("17", state)

        assert (row.phase, row.reason) == (phase, None if kind is None else Reason(kind))
        assert (row.run_id, row.host) == (RUN, "n1")

    @pytest.mark.parametrize(
        "raw, code", [("0", 0), ("35072", 137), ("9", -9), ("143", -15), ("", None)]
    )
    def test_a_wait_status_is_an_exit_code_or_a_signal(self, raw, code):
        assert rows("17", "FAILED", "n1", f"fiber-{RUN}", raw)[0].exit_code == code

    @pytest.mark.parametrize(
        "left, seconds",
        [
            ("UNLIMITED", None),
            ("5:03", 303),
            ("2:00:00", 7200),
            ("1-01:00:00", 90000),
            ("INVALID", None),
        ],
    )
    def test_the_time_that_is_left_is_read(self, left, seconds):
        assert rows("17", "RUNNING", "n1", f"fiber-{RUN}", "0", left)[0].seconds_left == seconds

    def test_words_say_why_a_job_waits_or_ended(self):
        name = f"fiber-{RUN}-detached"
        (waits,) = rows(
            "17_3", "PENDING", "n/a", name, "0", "UNLIMITED", "19", "Nodes required, maybe"
        )
        (lost,) = rows("17", "NODE_FAIL", "n1", name, "0", "0:00", "17", "NodeDown")
        (failed,) = rows("17", "FAILED", "n1", name, "9", "0:00", "17", "JobLaunchFailure")

        assert (waits.id, waits.run_id, waits.host) == ("17_3", RUN, None)
        assert waits.message == "in the queue: Nodes required, maybe"
        assert lost.message == "Slurm: NODE_FAIL (NodeDown)"
        assert failed.message == "Slurm: FAILED"
        for state, why in (("PREEMPTED", "None"), ("CANCELLED", "Resources")):
            (taken,) = rows("17", state, "n/a", name, "0", "0:00", why)
            assert taken.message == "by Slurm"

    def test_jobs_that_fiber_did_not_submit_are_none_of_ours(self):
        assert rows("17", "RUNNING", "n1", "of-somebody") == []
        assert list(read_rows("slurm_load_jobs error\n\n")) == []


class TestSubmission:
    def test_requests_and_settings_are_options(self):
        config = SlurmConfig(
            partition="gpu",
            account="lab",
            qos="high",
            time="2:00:00",
            constraint="a100",
            gres=("gpu=gpu:a100",),
            options="--exclusive --mail-type='FAIL,TIME_LIMIT'",
        )
        request = ResourceRequest(cpu=1.5, memory=2048, devices={"gpu": 2, "tpu": 1, "fpga": 0})

        found = words(config, resources=request, avoid_hosts=("n1", "n2"))

        assert {"--partition=gpu", "--account=lab", "--qos=high", "--time=2:00:00"} <= set(found)
        assert {"--constraint=a100", "--cpus-per-task=2", "--mem=2048M"} <= set(found)
        assert {"--gres=gpu:a100:2,tpu:1", "--exclude=n1,n2", "--no-requeue"} <= set(found)
        assert list(found[-2:]) == ["--exclusive", "--mail-type=FAIL,TIME_LIMIT"]
        assert f"--job-name=fiber-{RUN}" in found
        assert "--comment=a_worker_1" in found
        assert "--output=/f/%%x" in found

    def test_nothing_is_asked_for_that_nobody_asked_for(self):
        options = {word.partition("=")[0] for word in words()}

        assert not options & {"--mem", "--gres", "--partition", "--time", "--exclude", "--array"}

    def test_several_jobs_are_an_array(self):
        assert "--array=0-199" in words(count=200)

    @pytest.mark.parametrize("setting", [{"options": "'"}, {"gres": ("a100",)}])
    def test_a_setting_that_makes_no_sense_is_named(self, setting):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            words(SlurmConfig(**setting), resources=ResourceRequest(devices={"gpu": 1}))


def test_devices_are_counted_by_kind():
    assert counts_of("gpu:a100:4(S:0-1),gpu:2,tpu:0") == {"gpu": 6, "tpu": 0}
    assert counts_of("(null)") == {}
