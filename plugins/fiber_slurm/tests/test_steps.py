"""Steps: where they are chosen, the command line of srun, and what Slurm says of them; without a cluster."""

import signal
from pathlib import Path
from unittest import mock

import attrs
import pytest

from fiber.backend_parts.batch.system import Batch, Phase, Row
from fiber.exceptions import SubmitError
from fiber.model import JobSpec, Reason, ReasonKind, ResourceRequest
from fiber_slurm import steps
from fiber_slurm.allocation import Steps, StepTiming
from fiber_slurm.config import SlurmConfig
from fiber_slurm.rows import END, read_allocations
from fiber_slurm.system import SlurmSystem
from waiting import PATIENCE

RUN = "0badcafe"
PLAIN = SlurmConfig()


def batch(count=1, script="#!/bin/sh\nexec true\n", **more):
    spec = JobSpec(run_id=RUN, name="a worker", argv=("x",), **more)
    output = Path("/f/logs/ab-system")
    return Batch(name=f"fiber-{RUN}", script=script, specs=(spec,) * count, output=output)


def words(config=PLAIN, **more):
    return steps.step_command(batch(**more), config, "17.ab-3", 3)


class TestWhereJobsAreSteps:
    @pytest.mark.parametrize(
        "by, environ, found",
        [
            ("auto", {}, None),
            ("srun", {}, None),
            ("auto", {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "interactive"}, "17"),
            ("sbatch", {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "interactive"}, None),
            # a job that Fiber submitted has a place for one process
            ("auto", {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": f"fiber-{RUN}-detached"}, None),
            ("srun", {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": f"fiber-{RUN}"}, "17"),
            ("auto", {"SLURM_JOB_ID": "17", "SLURM_HET_SIZE": "2"}, None),
            # a step of Fiber's is in an allocation that somebody else made
            ("auto", {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": f"fiber-{RUN}.17.ab-0"}, "17"),
        ],
    )
    def test_is_told_by_the_setting_and_the_environment(self, by, environ, found):
        assert steps.surrounding(by, environ) == found


class TestCommand:
    def test_a_step_has_what_it_asks_for_and_nothing_else(self):
        config = SlurmConfig(gres=("gpu=gpu:a100",), time="2:00:00", constraint="fast")
        request = ResourceRequest(cpu=1.5, memory=2048, devices={"gpu": 2})

        found = set(words(config, resources=request, avoid_hosts=("n1", "n2")))

        assert {"--jobid=17", f"--job-name=fiber-{RUN}.17.ab-3", "--exact"} <= found
        assert {"--cpus-per-task=2", "--mem=2048M", "--gres=gpu:a100:2"} <= found
        assert {"--exclude=n1,n2", "--time=2:00:00", "--constraint=fast"} <= found
        assert {"--cpus-per-task=1", "--mem=0", "--gres=none"} <= set(words())

    def test_what_an_allocation_alone_can_have_is_not_asked_for(self):
        config = SlurmConfig(partition="p", account="a", qos="q", options="--exclusive")

        assert words(config) == words()

    def test_the_script_runs_in_its_own_shell_and_knows_its_number(self):
        found = words(script="#!/bin/bash -l\nmodule load x\n")

        assert found[-4:] == ["/bin/bash", "-l", "-c", "SLURM_ARRAY_TASK_ID=3\nmodule load x\n"]


class TestAnswers:
    def test_steps_of_fiber_are_read_and_no_others(self):
        rows = [
            ("17.0", f"fiber-{RUN}.17.ab-0", "n1", "1:00:00", "0:30"),
            ("17.1", f"fiber-{RUN}.17.ab-0.beside", "n1", "UNLIMITED", "0:30"),
            ("17.batch", "batch", "n1", "UNLIMITED", "0:30"),
            ("18.0", f"fiber-{RUN}", "n1", "UNLIMITED", "0:30"),
        ]
        output = "".join("".join(f"{field}{END}" for field in row) + "\n" for row in rows)

        found = list(steps.read_steps(output))

        assert [step.number for step in found] == ["17.0", "17.1"]
        assert (found[0].host, found[0].seconds_left) == ("n1", 3570)
        assert steps.run_of_step(found[0].name) == (RUN, "17.ab-0")

    def test_an_allocation_is_read(self):
        found = steps.read_allocation(
            "JobId=17 JobState=RUNNING TRES=cpu=5,mem=3G,node=4 Nodes=n1 CPU_IDs=0-2 Mem=1024 "
            "GRES=gpu:a100:2(IDX:0-1) Nodes=m,n[02-03] CPU_IDs=0 Mem=512 GRES=gpu:1(IDX:0)  MinCPUs=1"
        )
        used = steps.used_devices("A TresPerNode=gres:gpu:1 X\nB TresPerNode=gres/gpu:a100:2\n")

        assert (found.cpus, found.most, found.memory) == (6, 3, 2560)
        assert found.devices == {"gpu": 5}
        assert found.is_live
        assert found.capacity(used).devices == {"gpu": 2}
        assert not steps.read_allocation("").is_live
        assert not steps.read_allocation("JobState=COMPLETING").is_live

    @pytest.mark.parametrize(
        "errors, code, kind",
        [
            ("srun: error: n1: task 0: Exited with exit code 3", 3, None),
            ("srun: error: n1: task 0: Killed\nsrun: Force Terminated StepId=1.6", 137, None),
            ("error: *** STEP 1.5 ON n1 CANCELLED AT 2026 ***", 137, ReasonKind.CANCELLED),
            (
                "error: *** STEP 1.5 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
                143,
                ReasonKind.TIME_LIMIT,
            ),
            ("srun: error: n1: task 0: Out Of Memory", 137, ReasonKind.OOM),
            ("srun: error: Node failure on n1", 1, ReasonKind.NODE_LOST),
            ("srun: error: Unable to create step for job 1: no", 1, ReasonKind.START),
            ("srun: Cancelled pending job step with signal 15", 143, ReasonKind.CANCELLED),
        ],
    )
    def test_an_srun_says_why_its_step_ended(self, errors, code, kind):
        end = steps.end_of(errors, code)

        assert end.reason == (None if kind is None else Reason(kind))
        assert end.code == {137: -9, 143: -15}.get(code, None if kind is ReasonKind.START else code)

    @pytest.mark.parametrize(
        "own, allocation, phase, left",
        [
            (None, Row(id="17", run_id="", phase=Phase.PLACED, seconds_left=50), Phase.PLACED, 50),
            (20, Row(id="17", run_id="", phase=Phase.PLACED, seconds_left=50), Phase.PLACED, 20),
            (None, Row(id="17", run_id="", phase=Phase.SUSPENDED), Phase.SUSPENDED, None),
            (None, Row(id="17", run_id="", phase=Phase.ENDING), Phase.ENDING, None),
        ],
    )
    def test_what_becomes_of_an_allocation_becomes_of_its_steps(self, own, allocation, phase, left):
        step = steps.Step(number="17.0", name=f"fiber-{RUN}.17.ab-0", host="n1", seconds_left=own)

        row, *_ = Steps(PLAIN, StepTiming()).rows([step], {"17": allocation})

        assert row == Row(id="17.ab-0", run_id=RUN, host="n1", phase=phase, seconds_left=left)

    def test_jobs_are_known_by_the_ids_in_their_environment(self):
        row = ("17_3", "RUNNING", "n1", "mine", "0", "5:00", "19", "None")

        found = read_allocations("".join(f"{field}{END}" for field in row))

        assert found["19"].seconds_left == 300


@pytest.mark.parametrize(
    "request_, state, words",
    [
        (ResourceRequest(cpu=4), "RUNNING", "more than 3"),
        (ResourceRequest(devices={"gpu": 3}), "RUNNING", "has 2"),
        (ResourceRequest(), "TIMEOUT", r"is over \(TIMEOUT\)"),
    ],
)
def test_what_an_allocation_never_has_a_place_for_is_refused(request_, state, words):
    allocation = steps.Allocation(state=state, cpus=4, most=3, devices={"gpu": 2})

    with pytest.raises(SubmitError, match=rf"{words}.*FIBER_SLURM_BY=sbatch"):
        Steps(PLAIN, StepTiming()).submit(
            batch(resources=request_), "17", allocation, program="/bin/false", environ={}
        )


def test_a_step_has_ended_once_slurm_shows_none_after_the_end_of_its_srun(tmp_path):
    """One that is ended while it gets its place may leave its step, which is to be ended then."""
    made = Steps(PLAIN, StepTiming())
    allocation = steps.Allocation(state="RUNNING", cpus=4, most=3)
    (job,) = made.submit(
        attrs.evolve(batch(), output=tmp_path / "ab-system"),
        "17",
        allocation,
        program="/bin/false",
        environ={},
    )
    made._started[job].process.wait(PATIENCE)
    placed = steps.Step(number="17.0", name=f"fiber-{RUN}.{job}", host="n1", seconds_left=None)

    def phase(*shown):
        (row,) = made.rows(shown, {})
        return row.phase

    # the list that was asked for before its end says nothing
    assert phase() is Phase.ENDING
    assert phase(placed) is Phase.PLACED
    assert phase() is Phase.ENDED


def test_a_step_that_was_killed_in_vain_is_killed_again_and_a_job_is_ended():
    """One that had no place yet may have got it since."""
    system = mock.Mock()

    SlurmSystem.end(system, ["17.ab-0", "18"])

    system._cancel.assert_called_once_with(["18"])
    system.signal.assert_called_once_with(["17.ab-0"], signal.SIGKILL)
