"""Specification of a run: command lines are split, and manifests read as by the MPI operator, with unsupported fields named."""

import copy

import pytest

from fiber._ring.mpi.ranks import MpiHost, Verdict
from fiber._ring.mpi.spec import (
    CommandLine,
    MemberGroup,
    Need,
    expand_groups,
    fit_to_capabilities,
    maps_ranks,
    merge_needs,
    parse_group,
    parse_manifest,
    parse_mpirun,
    rank_and_member_counts,
    run_spec,
    run_with_retries,
    split_command_line,
)
from fiber.exceptions import FiberError
from fiber.model import Capabilities, ResourceRequest, Volume

KNOWN = {"-np": True, "--slots": True, "-v": True, "--flag": False}


@pytest.mark.parametrize(
    "line, ours, options, program",
    [
        ("-np 2 ./a -x --slots 3", "-np 2", "", "./a -x --slots 3"),
        ("-np 2 -- ./a -- b", "-np 2", "", "./a -- b"),
        ("--slots=2 -v nfs:/x --flag prog", "--slots=2 -v nfs:/x --flag", "", "prog"),
        (
            "--map-by node -np 4 -x A=1 --slots 2 -- p",
            "-np 4 --slots 2",
            "--map-by node -x A=1",
            "p",
        ),
        ("-verbose -- p", "", "-verbose", "p"),
        ("-np 2", "-np 2", "", ""),
        ("", "", "", ""),
    ],
)
def test_a_command_line_is_split(line, ours, options, program):
    parts = (tuple(part.split()) for part in (ours, options, program))

    assert split_command_line(line.split(), KNOWN) == CommandLine(*parts)


@pytest.mark.parametrize(
    "line, maps",
    [
        ("--bind-to none -x PATH", False),
        ("--map-by node", True),
        ("-ppn 2", True),
        ("--map-by=node", True),
        ("-H a,b", True),
        ("", False),
    ],
)
def test_mapping_options_are_known(line, maps):
    assert maps_ranks(line.split()) is maps


@pytest.mark.parametrize(
    "asked, found",
    [
        ((None, 1, None), (1, 1)),
        ((None, 4, None), (4, 1)),
        ((None, 2, 3), (6, 3)),
        ((4, 2, None), (4, 2)),
        ((5, 2, None), (5, 3)),
        ((2, 2, 3), (2, 3)),
    ],
)
def test_members_are_as_many_as_the_ranks_need(asked, found):
    assert rank_and_member_counts(*asked) == found


@pytest.mark.parametrize(
    "line, count, options, program",
    [
        ("mpirun -n 2 ./a -n 3", 2, "", "./a -n 3"),
        ("/opt/bin/mpiexec ./a", None, "", "./a"),
        ("mpirun --quiet -np 4 -bind-to none ./a", 4, "--quiet -bind-to none", "./a"),
        ("mpirun -mca btl ^openib -x A=b ./a", None, "-mca btl ^openib -x A=b", "./a"),
        ("mpirun --map-by=node -v p", None, "--map-by=node -v", "p"),
        ("mpiexec.hydra -genv A b -n 2 -ppn 1 p", 2, "-genv A b -ppn 1", "p"),
    ],
)
def test_a_command_of_mpiruns_is_taken_apart(line, count, options, program):
    command = line.split()

    found = parse_mpirun(command)

    assert found == (
        command[0],
        count,
        CommandLine((), tuple(options.split()), tuple(program.split())),
    )


@pytest.mark.parametrize("command", [[], ["python", "t.py"], ["horovodrun", "-np", "2"]])
def test_other_commands_are_not(command):
    assert parse_mpirun(command) is None


COMMON = Need(
    resources=ResourceRequest(cpu=1.0, devices={"gpu": 1}),
    image="me/mpi",
    volumes=(Volume(source="nfs", path="/data"),),
)


@pytest.mark.parametrize(
    "word, group",
    [
        ("3", MemberGroup(members=3)),
        ("2:slots=4,gpu=1", MemberGroup(members=2, slots=4, gpu=1)),
        ("1:cpu=500m,memory=2Gi", MemberGroup(members=1, cpu=0.5, memory=2048)),
    ],
)
def test_a_word_tells_a_group(word, group):
    assert parse_group(word) == group


def test_members_are_numbered_through_and_have_what_their_group_or_all_have():
    groups = [MemberGroup(members=2, slots=4, gpu=2), MemberGroup(members=1, cpu=8.0)]

    hosts, needs = expand_groups(groups, 3, COMMON)

    assert hosts == (MpiHost("member-0", 4), MpiHost("member-1", 4), MpiHost("member-2", 3))
    assert needs["member-1"].resources == ResourceRequest(cpu=1.0, devices={"gpu": 2})
    assert needs["member-2"].resources == ResourceRequest(cpu=8.0, devices={"gpu": 1})
    assert {need.image for need in needs.values()} == {"me/mpi"}
    assert {need.volumes for need in needs.values()} == {COMMON.volumes}


def test_the_first_of_two_needs_wins():
    own = Need(resources=ResourceRequest(memory=64), image="me/launcher")

    assert merge_needs(own, COMMON) == Need(
        resources=ResourceRequest(cpu=1.0, memory=64, devices={"gpu": 1}),
        image="me/launcher",
        volumes=COMMON.volumes,
    )


# -- manifests

LAUNCHER = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0]"
POD = "spec.mpiReplicaSpecs.Worker.template.spec"
WORKER = f"{POD}.containers[0]"


def replicas(count, container, **pod):
    return {"replicas": count, "template": {"spec": {"containers": [container], **pod}}}


PI = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "pi"},
    "spec": {
        "slotsPerWorker": 2,
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "mpiImplementation": "OpenMPI",
        "runPolicy": {
            "cleanPodPolicy": "Running",
            "ttlSecondsAfterFinished": 60,
            "activeDeadlineSeconds": 30,
            "backoffLimit": 2,
        },
        "mpiReplicaSpecs": {
            "Launcher": replicas(
                1,
                {
                    "name": "launcher",
                    "image": "me/pi",
                    "env": [{"name": "STEPS", "value": 7}],
                    "command": ["mpirun"],
                    "args": ["-n", "4", "--bind-to", "none", "./pi", "-n", "$(STEPS)"],
                },
            ),
            "Worker": replicas(
                2,
                {
                    "name": "worker",
                    "image": "me/pi",
                    "resources": {
                        "requests": {"cpu": "250m", "memory": "1Gi"},
                        "limits": {"cpu": "500m", "nvidia.com/gpu": 1},
                    },
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                },
                volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "nfs"}}],
            ),
        },
    },
}


@pytest.fixture
def manifest():
    return copy.deepcopy(PI)


def container(manifest, kind="Launcher"):
    pod = manifest["spec"]["mpiReplicaSpecs"][kind]["template"]["spec"]
    return pod["containers"][0]


def test_what_it_asks_for_is_read(manifest):
    job = parse_manifest(manifest)

    assert (job.name, job.workers, job.slots) == ("pi", 2, 2)
    assert job.command == ("mpirun", "-n", "4", "--bind-to", "none", "./pi", "-n", "7")
    assert (job.deadline, job.retries, job.suspended) == (30, 2, False)
    assert job.env == {"STEPS": "7"}
    assert job.worker.resources == ResourceRequest(cpu=0.5, memory=1024, devices={"gpu": 1})
    assert job.worker.volumes == (Volume(source="nfs", path="/data", read_only=True),)
    assert (job.worker.image, job.launcher.image) == ("me/pi", "me/pi")
    assert job.unsupported == ()


def test_each_field_that_is_not_done_is_named_by_its_path(manifest):
    # which YAML reads as no texts
    manifest["spec"] |= {True: 1, 2: 3}
    manifest["spec"]["runPolicy"] |= {"schedulingPolicy": {"queue": "q"}, "cleanPodPolicy": "None"}
    container(manifest)["securityContext"] = {"runAsUser": 1000}
    container(manifest)["env"].append({"name": "A", "valueFrom": {"fieldRef": {}}})
    pod = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"].append({"name": "scratch", "emptyDir": {}})
    pod["containers"].append({"name": "sidecar", "image": "x"})
    pod["tolerations"] = [{"key": "gpu"}]

    assert list(parse_manifest(manifest).unsupported) == sorted(
        [
            "spec.2",
            "spec.True",
            "spec.runPolicy.cleanPodPolicy=None",
            "spec.runPolicy.schedulingPolicy",
            f"{LAUNCHER}.env[1].valueFrom",
            f"{LAUNCHER}.securityContext",
            f"{POD}.containers[1]",
            f"{POD}.tolerations",
            f"{POD}.volumes[1].emptyDir",
        ]
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.update(kind="TFJob"), "kubeflow.org/v2beta1 TFJob; .* MPIJob is known"),
        (lambda m: m.update(apiVersion="kubeflow.org/v1"), "of kubeflow.org/v1 MPIJob"),
        (lambda m: m["spec"]["mpiReplicaSpecs"].pop("Launcher"), "Launcher is missing"),
        (lambda m: m["spec"].update(slotsPerWorker="2"), "spec.slotsPerWorker must be a whole"),
        (lambda m: m.update(spec=[1]), "spec must have fields"),
        # its hosts are lines of host files and words of a script that elastic launchers run
        (lambda m: m["metadata"].update(name="x$(echo evil >&2)"), r"metadata.name is 'x\$\(echo"),
        (lambda m: m["metadata"].update(name="x" * 60), f"'{'x' * 60}-worker-1': use lower case"),
        (lambda m: "hello", "the manifest must have fields"),
        (lambda m: [container(m).pop(k) for k in ("command", "args")], "has no command"),
    ],
)
def test_what_makes_no_sense_is_an_error(manifest, change, message):
    changed = change(manifest)

    with pytest.raises(FiberError, match=message):
        parse_manifest(changed if isinstance(changed, str) else manifest)


def test_mpirun_is_led_as_fiber_mpirun_leads_it(manifest):
    plan = run_spec(parse_manifest(manifest), 60.0)

    assert (plan.mpirun, plan.count, plan.options) == ("mpirun", 4, ("--bind-to", "none"))
    assert plan.program == ("./pi", "-n", "7")
    assert plan.hosts == (MpiHost("pi-worker-0", 2), MpiHost("pi-worker-1", 2))
    assert (plan.deadline, plan.strict) == (30, True)


@pytest.mark.parametrize(
    "command, count, program",
    [
        ("mpirun ./pi", 4, "./pi"),
        # a launcher of another kind is run as it is
        ("horovodrun -np 2 python t.py", 0, "horovodrun -np 2 python t.py"),
    ],
)
def test_without_a_number_all_slots_have_a_rank(manifest, command, count, program):
    container(manifest).update(command=command.split(), args=[])

    plan = run_spec(parse_manifest(manifest), 60.0)

    assert (plan.count, plan.program) == (count, tuple(program.split()))


def test_a_launcher_that_is_a_worker_is_the_first_member(manifest):
    manifest["spec"]["runLauncherAsWorker"] = True

    plan = run_spec(parse_manifest(manifest), 60.0)

    names = [host.name for host in plan.hosts]
    assert names == ["pi-launcher", "pi-worker-0", "pi-worker-1"]
    assert list(plan.jobs()) == [("launcher", "pi-launcher"), ("pi-worker-0",), ("pi-worker-1",)]


def test_a_launcher_without_workers_is_a_job_of_one_which_may_be_the_launchers(manifest):
    del manifest["spec"]["mpiReplicaSpecs"]["Worker"]
    assert parse_manifest(manifest).workers == 1

    manifest["spec"]["runLauncherAsWorker"] = True
    container(manifest)["args"][1] = "2"

    assert list(run_spec(parse_manifest(manifest), 60.0).jobs()) == [("launcher", "pi-launcher")]


def test_what_a_backend_does_not_do_is_named(manifest):
    job = fit_to_capabilities(
        parse_manifest(manifest), Capabilities(images=True, memory_limit=True)
    )

    # cpus and memory are wishes where they are no limits
    assert job.worker.resources == ResourceRequest(cpu=0.5, memory=1024)
    assert job.worker.image == "me/pi"
    assert job.unsupported == tuple(
        f"the Worker's {what}, on this backend" for what in ("devices", "volumes")
    )


@pytest.mark.parametrize(
    "codes, runs, found", [([3, 3, 0], 3, 0), ([3, 3, 3], 3, 3), ([0], 1, 0), ([143, 0], 1, 143)]
)
def test_a_job_that_fails_and_that_nobody_ended_is_tried_again(codes, runs, found):
    left, reports = [Verdict(code, is_asked=code == 143) for code in codes], []

    assert run_with_retries(lambda: left.pop(0), 2, reports.append).code == found
    assert len(codes) - len(left) == runs
    assert len(reports) == runs - 1


def test_the_last_error_is_raised():
    def run():
        raise FiberError("no room")

    reports = []
    with pytest.raises(FiberError, match="no room"):
        run_with_retries(run, 1, reports.append)
    assert reports == ["no room; it is tried again, at most 1 times"]


@pytest.mark.parametrize(
    "command, named",
    # a daemon for logins is what others need
    [("serve", (f"{WORKER}.command",)), ("/usr/sbin/sshd", ())],
)
def test_what_a_worker_would_run_besides_is_named(manifest, command, named):
    container(manifest, "Worker")["command"] = [command]

    assert parse_manifest(manifest).unsupported == named
