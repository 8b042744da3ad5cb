"""Manifests in the shapes that the MPI operator's documentation shows are read; the rest is named."""

import json
import textwrap

import pytest

import require
from fiber._ring.mpi.manifest import fit_to_capabilities, parse_manifest, run_spec
from fiber.model import Capabilities

LAUNCHER = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0]"
WORKER = "spec.mpiReplicaSpecs.Worker.template.spec.containers[0]"

#: a program in C: words in command and args, a daemon for logins on workers, users and limits
PI = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi, labels: {team: a}}
spec:
  slotsPerWorker: 1
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 60, backoffLimit: 1}
  sshAuthMountPath: /home/mpiuser/.ssh
  mpiReplicaSpecs:
    Launcher:
      restartPolicy: Never
      replicas: 1
      template: {spec: {containers: [{
        name: mpi-launcher, image: me/pi, securityContext: {runAsUser: 1000},
        command: [mpirun], args: ["-n", "2", /home/mpiuser/pi],
        resources: {limits: {cpu: 1, memory: 1Gi}}}]}}
    Worker:
      restartPolicy: Never
      replicas: 2
      template: {spec: {containers: [{
        name: mpi-worker, image: me/pi, securityContext: {runAsUser: 1000},
        command: [/usr/sbin/sshd], args: [-De, -f, /home/mpiuser/.sshd_config],
        resources: {limits: {cpu: 1, memory: 1Gi}}}]}}
"""
#: another MPI: a name without a value, a probe
PI_MPICH = (
    PI.replace("sshAuthMountPath", "mpiImplementation: MPICH\n  sshAuthMountPath")
    .replace("command: [mpirun], args: [", "args: [mpirun, ")
    .replace("command: [/usr/sbin/sshd], args: [", "command: , args: [/usr/sbin/sshd, ")
    .replace("name: mpi-worker,", "name: mpi-worker, readinessProbe: {tcpSocket: {port: 2222}},")
)
#: benchmarks on GPUs: options of Open MPI with one hyphen, and a program with its own
BENCHMARKS = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: tensorflow-benchmarks}
spec:
  slotsPerWorker: 1
  runPolicy: {cleanPodPolicy: Running}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{name: x, image: me/benchmarks, command: [
        mpirun, --allow-run-as-root, -np, "2", -bind-to, none, -map-by, slot, -x, NCCL_DEBUG=INFO,
        -x, PATH, -mca, pml, ob1, -mca, btl, ^openib,
        python, benchmarks.py, --model=resnet101, --batch_size=64]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{
        name: x, image: me/benchmarks, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""
#: an elastic launcher of its own kind, which asks a script for hosts
ELASTIC = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: elastic}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: x, image: me/horovod, command: [horovodrun], args: [
        -np, "2", --min-np, "1", --max-np, "4",
        --host-discovery-script, /etc/mpi/discover_hosts.sh, python, train.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: x, image: me/horovod}]}}
"""


def parsed(text):
    require.need_module("yaml")
    import yaml

    # and as JSON has it, where numbers and texts differ
    return json.loads(json.dumps(yaml.safe_load(textwrap.dedent(text))))


@pytest.mark.parametrize("text", [PI, PI_MPICH])
def test_pi(text):
    job = parse_manifest(parsed(text))
    plan = run_spec(job, 60)

    assert (job.workers, job.slots, job.retries) == (2, 1, 1)
    assert (plan.mpirun, plan.count, plan.program) == ("mpirun", 2, ("/home/mpiuser/pi",))
    assert (job.worker.image, job.worker.resources.cpu, job.worker.resources.memory) == (
        "me/pi",
        1.0,
        1024,
    )
    named = {path for path in job.unsupported if "readinessProbe" not in path}
    assert named == {f"{LAUNCHER}.securityContext", f"{WORKER}.securityContext"}
    assert (f"{WORKER}.readinessProbe" in job.unsupported) == (text is PI_MPICH)


def test_benchmarks_on_gpus():
    job = parse_manifest(parsed(BENCHMARKS))
    plan = run_spec(job, 60)

    assert job.unsupported == ()
    assert job.worker.resources.devices == {"gpu": 1}
    assert plan.options[:5] == ("--allow-run-as-root", "-bind-to", "none", "-map-by", "slot")
    assert plan.program == (*("python", "benchmarks.py", "--model=resnet101", "--batch_size=64"),)
    # on a backend without images and devices these are reported, and it runs all the same
    unsupported = fit_to_capabilities(job, Capabilities()).unsupported
    assert "the Worker's devices, on this backend" in unsupported
    assert "the Launcher's image, on this backend" in unsupported


def test_an_elastic_launcher_is_run_as_it_is():
    job = parse_manifest(parsed(ELASTIC))
    plan = run_spec(job, 60)

    assert job.unsupported == ()
    assert plan.program[0] == "horovodrun"
    assert [(host.name, host.slots) for host in plan.hosts] == [
        ("elastic-worker-0", 2),
        ("elastic-worker-1", 2),
    ]


def test_what_a_worker_would_run_besides_is_named():
    text = ELASTIC.replace("{name: x, image: me/horovod}]", "{name: x, command: [serve]}]")

    assert parse_manifest(parsed(text)).unsupported == (f"{WORKER}.command",)
