"""The ``fiber`` command on a cluster of hollow pods: its pods, its output, its exit codes."""

import re
import shutil
import tempfile

import pytest
from click.testing import CliRunner

from cluster import Act, Cluster
from fiber._agent import rundir
from fiber.cli.main import cli
from k8s_masters import grant
from owners import DEAD, owned_by


def play(pod):
    """Script of a pod by its program: ``end CODE``, ``say WORDS``, else it runs on."""
    words = pod["spec"]["containers"][0]["command"]
    if "end" in words:
        code = words[words.index("end") + 1]
        return Act(code=int(code), message=f"\nfiber: exit {code}\n")
    if "say" in words:
        return Act(code=0, log=" ".join(words[words.index("say") + 1 :]) + "\n")
    if "nosuch" in words:
        told = "cannot run 'nosuch': No such file"
        return Act(code=127, log=f"fiber: {told}\n", message=f"\nfiber: start {told}\n")
    return Act(message="\nfiber: signal 15\n")


@pytest.fixture(scope="module")
def shared():
    with Cluster.start(script=play) as made:
        made.add_namespace("lab")
        yield made


@pytest.fixture
def cluster(shared):
    """The cluster, which has nothing of ours at the end."""
    yield shared
    shared.wait_for("pods", lambda pods: not pods)
    assert shared.objects("leases") == []
    assert shared.objects("secrets") == []


@pytest.fixture
def fiber(cluster, monkeypatch, tmp_path):
    """The command as on a host outside of the cluster."""
    folder = tempfile.mkdtemp(prefix="fc-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("FIBER_BACKEND", "k8s")
    monkeypatch.setenv("FIBER_IMAGE", "registry.lab/train:1")
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(cli, words, prog_name="fiber")

    yield run
    run("kill", "--now", *(pod["metadata"]["name"] for pod in cluster.objects("pods")))
    run("gc")
    shutil.rmtree(folder)


@pytest.fixture
def granted(cluster, fiber):
    """The cluster, where Fiber has its rights in the namespace of that name."""
    if cluster.get("namespaces", "granted") is None:
        cluster.add_namespace("granted")
        grant(cluster, "granted")
    yield cluster
    pods = [pod["metadata"]["name"] for pod in cluster.objects("pods")]
    fiber("kill", "--namespace", "granted", "--now", *pods)


def created(done):
    """The pod that a command reports to have created."""
    (line,) = [line for line in done.output.splitlines() if line.startswith("Created pod: fiber-")]
    return line.removeprefix("Created pod: ")


def wait_for_phase(cluster, phase):
    cluster.wait_for("pods", lambda pods: pods and pods[0]["status"].get("phase") == phase)


class TestRun:
    def test_another_namespace_is_used_throughout_and_what_holds_on_this_host_stays_here(
        self, fiber, cluster, monkeypatch
    ):
        monkeypatch.setenv("FIBER_K8S_CONTEXT", "emulated")
        monkeypatch.setenv("FIBER_K8S_ADDRESS", "192.0.2.1")

        name = created(fiber("run", "--namespace", "lab", "sleep", "1"))

        (one,) = cluster.get("pods", name, "lab")["spec"]["containers"]
        environ = {each["name"]: each["value"] for each in one["env"]}
        assert environ["FIBER_K8S_NAMESPACE"] == "lab"
        assert not {"FIBER_K8S_CONTEXT", "FIBER_K8S_ADDRESS", "KUBECONFIG"} & environ.keys()
        assert name in fiber("ps", "--namespace", "lab").stdout
        assert name not in fiber("ps").stdout
        assert fiber("kill", "--namespace", "lab", name).stdout == f"Ended job: {name}\n"
        # the run remembers where it is
        assert len(fiber("gc").stdout.splitlines()) <= 1
        cluster.wait_for("pods", lambda pods: not pods)

    @pytest.mark.parametrize(
        "words, template, account",
        [
            ((), "{}", "fiber"),
            (("--service-account", "default"), "{}", "default"),
            # what is to use another backend has none of our rights
            (("-e", "FIBER_BACKEND=local"), "{}", "default"),
            ((), "{serviceAccountName: default}", "default"),
            ((), "{serviceAccount: default}", "default"),
        ],
        ids=["nothing is said", "one is named", "another backend", "a template", "as of old"],
    )
    def test_it_has_the_account_that_is_granted_the_rights_unless_another_one_is_meant(
        self, fiber, granted, monkeypatch, tmp_path, words, template, account
    ):
        (tmp_path / "pod.yaml").write_text(f"spec: {template}")
        monkeypatch.setenv("FIBER_K8S_POD_TEMPLATE", str(tmp_path / "pod.yaml"))

        name = created(fiber("run", "--namespace", "granted", *words, "sleep", "1"))

        assert granted.get("pods", name, "granted")["spec"]["serviceAccountName"] == account

    def test_labels_of_its_pod_template_are_its_workers_too_beneath_those_of_the_setting(
        self, fiber, cluster, monkeypatch, tmp_path
    ):
        (tmp_path / "pod.yaml").write_text("metadata: {labels: {cost: '7', team: a}}")
        monkeypatch.setenv("FIBER_K8S_POD_TEMPLATE", str(tmp_path / "pod.yaml"))
        monkeypatch.setenv("FIBER_K8S_LABELS", "team=b")

        pod = cluster.get("pods", created(fiber("run", "sleep", "1")))

        environ = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        assert environ["FIBER_K8S_LABELS"] == "cost=7,team=a,team=b"
        assert {"cost": "7", "team": "b"}.items() <= pod["metadata"]["labels"].items()

    def test_where_there_is_none_it_has_the_default_account(self, fiber, cluster):
        cluster.forget_requests()
        done = fiber("run", "sleep", "1")

        name = created(done)
        assert cluster.get("pods", name)["spec"]["serviceAccountName"] == "default"
        assert done.stderr == ""
        # who may run programs need not be allowed to look for accounts
        asked = {one.resource for one in cluster.requests}
        assert "serviceaccounts" not in asked
        tries = [one for one in cluster.requests if (one.verb, one.resource) == ("create", "pods")]
        assert len(tries) == 2

    def test_without_an_image_the_error_says_how_to_name_one(self, fiber, monkeypatch):
        monkeypatch.delenv("FIBER_IMAGE")

        done = fiber("run", "true")

        assert done.exit_code == 1
        assert (
            "no image is named for jobs to run in; set FIBER_IMAGE=NAME (or --image)" in done.stderr
        )


def test_attached_it_shows_the_output_ends_as_the_program_and_leaves_nothing(fiber, cluster):
    cluster.forget_requests()

    done = fiber("run", "-a", "say", "hello", "there")

    assert (done.exit_code, done.stdout) == (0, "hello there\n")
    assert done.stderr == f"Created pod: {created(done)}\n"
    assert fiber("run", "-a", "end", "7").exit_code == 7
    done = fiber("run", "-a", "nosuch")
    assert (done.exit_code, done.output.count("cannot run 'nosuch'")) == (127, 1)
    cluster.wait_for("pods", lambda pods: not pods)
    assert list(rundir.runs()) == []
    # it does not live by a lease of this host
    made = {call.resource for call in cluster.requests if call.verb == "create"}
    assert made == {"pods"}


class TestLookingAfter:
    def test_the_rights_that_are_printed_are_enough_to_list_pods_show_their_logs_and_end_them(
        self, fiber, cluster, monkeypatch, tmp_path
    ):
        grant(cluster, account="enough", options=["--exec"])
        config = cluster.write_kubeconfig(tmp_path / "enough", user="default/enough")
        monkeypatch.setenv("KUBECONFIG", str(config))
        name = created(fiber("run", "--name", "train", "sleep", "1000"))
        wait_for_phase(cluster, "Running")
        cluster.say(name, "one\ntwo\n")

        (header, row) = fiber("ps").stdout.splitlines()
        assert header.split("\t")[:4] == ["RUN", "JOB", "NAME", "STATE"]
        assert row.split("\t")[1:4] == [name, "train", "running"]
        assert row.endswith("\tsleep 1000")
        assert fiber("logs", name).stdout == "one\ntwo\n"
        assert fiber("logs", "--tail", "1", "train").stdout == "two\n"
        assert fiber("exec", name, "true").exit_code == 0
        assert fiber("kill", "train").stdout == f"Ended job: {name}\n"
        assert len(fiber("ps").stdout.splitlines()) == 1
        assert fiber("gc").exit_code == 0

    def test_the_list_says_why_no_node_takes_a_pod(self, fiber, cluster, monkeypatch):
        monkeypatch.setenv("FIBER_K8S_NODE_SELECTOR", "disk=none")
        name = created(fiber("run", "sleep", "1"))
        cluster.wait_for("pods", lambda pods: pods[0]["status"].get("conditions"))

        done = fiber("ps")

        assert done.stdout.splitlines()[1].split("\t")[3] == "pending UNSCHEDULABLE"
        assert done.stderr.startswith(f"fiber: {name} waits: 0/1 nodes are available: ")

    @pytest.mark.parametrize("here", [True, False], ids=["here", "on another host"])
    def test_what_has_ended_is_collected_wherever_it_began(self, fiber, cluster, here):
        name = created(fiber("run", "end", "0"))
        wait_for_phase(cluster, "Succeeded")
        ((folder, _),) = rundir.runs()
        if here:
            # the command that began it was this process, and would have ended
            owned_by(folder, DEAD)
            assert name in fiber("ps", "-a").stdout
        else:
            rundir.remove(folder)
        why = "its jobs have ended" if here else "whoever began it is gone"

        assert fiber("gc", "--dry-run").stdout == f"Would remove run: {folder.name} ({why})\n"
        assert cluster.get("pods", name) is not None
        assert fiber("gc").stdout == f"Removed run: {folder.name} ({why})\n"

        assert cluster.get("pods", name) is None
        assert list(rundir.runs()) == []

    def test_a_copy_says_what_its_pod_waits_for_and_ends_where_that_never_comes(
        self, fiber, cluster, monkeypatch
    ):
        monkeypatch.setenv("FIBER_K8S_NODE_SELECTOR", "disk=none")
        monkeypatch.setenv("FIBER_K8S_UNSCHEDULABLE_TIMEOUT", "0.1")

        done = fiber("cp", "data:x", ".")

        waits, failed = done.stderr.splitlines()
        assert re.match("fiber: pod fiber-copy-data-.* waits: 0/.* nodes are available", waits)
        assert failed.startswith("fiber: copy-data did not start: 0/")
        assert done.exit_code == 1
