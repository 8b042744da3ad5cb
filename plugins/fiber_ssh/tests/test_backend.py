"""The ssh backend beyond the conformance kit: connections, drops, placement, fences, versions."""

import hashlib
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import attrs
import pytest

from fiber.exceptions import BackendUnavailableError, ConfigError, ResourceError
from fiber.model import BackendContext, JobSpec, JobState, Reason, ReasonKind, ResourceRequest
from fiber.testing import programs
from fiber_ssh.backend import SshBackend
from fiber_ssh.config import SshConfig
from supervised import until_gone


def spec(run_id, argv, **fields):
    return JobSpec(run_id=run_id, name="job", argv=argv, **fields)


class StatusReader:
    """Reader of a backend's stream of statuses, in a thread."""

    def __init__(self, backend, run_id):
        self.published = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.read, args=(backend, run_id), daemon=True)
        self.thread.start()

    def read(self, backend, run_id):
        for job, status in backend.events(run_id):
            with self.changed:
                self.published.append((job.id, status))
                self.changed.notify_all()

    def until(self, job, *states, timeout=30):
        def found():
            return [s for i, s in self.published if i == job.id and s.state in states]

        with self.changed:
            assert self.changed.wait_for(found, timeout), self.published
            return found()[0]


@pytest.fixture
def statuses(backend, run_id):
    return StatusReader(backend, run_id)


def test_jobs_go_to_the_host_with_the_most_free_slots(backend, statuses, run_id):
    backend.capacity()
    jobs = [backend.submit(spec(run_id, programs.sleep_forever())) for _ in range(6)]

    hosts = [statuses.until(job, JobState.RUNNING).host for job in jobs]

    assert hosts == ["alpha", "beta", "gamma"] * 2


def test_jobs_wait_for_slots_with_a_message(opened, context, config, world, run_id):
    text = world.hosts_file.read_text().replace("slots = 32", "slots = 1")
    world.hosts_file.write_text(text)
    backend = opened(context)
    statuses = StatusReader(backend, run_id)
    backend.capacity()
    holders = [backend.submit(spec(run_id, programs.sleep_forever())) for _ in range(3)]
    waiting = backend.submit(spec(run_id, programs.exit_with(3)))

    assert statuses.until(waiting, JobState.PENDING).message == (
        "it waits for a free slot; 0 of 3 slots on 3 hosts are free"
    )
    backend.kill(holders[1])
    assert statuses.until(waiting, JobState.FAILED).exit_code == 3
    assert statuses.until(waiting, JobState.RUNNING).host == "beta"


def test_more_slots_than_a_host_has_are_refused(backend, run_id):
    with pytest.raises(ResourceError, match="asks for 33 slots"):
        backend.submit(spec(run_id, programs.exit_with(0), resources=ResourceRequest(cpu=33)))


def test_one_connection_a_host_is_used_for_everything(backend, statuses, run_id, world):
    jobs = [backend.submit(spec(run_id, programs.sleep_forever())) for _ in range(6)]
    for job in jobs:
        statuses.until(job, JobState.RUNNING)
        assert next(backend.logs(job, follow=True)) == "ready"
    backend.exec(jobs[0], ["true"])

    for host in world.hosts:
        sessions = [pid for pid in host.pids() if is_session(pid)]
        # sshd has two processes for each connection where it gives up privileges, else one
        assert len(sessions) == 1, host.name


def is_session(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # the latter since OpenSSH 9.8
    return words.startswith((b"sshd: root@", b"sshd-session: root@"))


def test_a_job_does_not_notice_that_the_connection_dropped(backend, statuses, run_id, world):
    code = (
        "import sys, time\n"
        "for n in range(60): print('line', n, flush=True); time.sleep(0.05)\n"
        "sys.exit(7)"
    )
    job = backend.submit(spec(run_id, ("python3", "-I", "-c", code)))
    lines = backend.logs(job, follow=True)
    first = [next(lines) for _ in range(5)]

    for host in world.hosts:
        host.drop_sessions()

    assert [*first, *lines] == [f"line {n}" for n in range(60)]
    assert statuses.until(job, JobState.FAILED).reason == Reason(ReasonKind.EXIT, 7)


def test_output_comes_once_and_in_order_whatever_drops(backend, statuses, run_id, world, capfd):
    code = "import time\nfor n in range(40): print(n, flush=True); time.sleep(0.05)"
    capfd.readouterr()
    job = backend.submit(spec(run_id, ("python3", "-I", "-c", code)))
    statuses.until(job, JobState.RUNNING)

    for host in world.hosts:
        host.drop_sessions()
    statuses.until(job, JobState.SUCCEEDED)
    backend.close()

    assert capfd.readouterr().out.split() == [str(n) for n in range(40)]


def test_a_silent_host_is_given_up_and_its_jobs_end_by_themselves(opened, context, run_id, world):
    backend = opened(context, lease=4.0)
    statuses = StatusReader(backend, run_id)
    backend.capacity()
    job = backend.submit(spec(run_id, programs.sleep_forever()))
    running = statuses.until(job, JobState.RUNNING)
    (alpha, *_) = world.hosts
    assert running.host == "alpha"
    try:
        alpha.cut()
        end = statuses.until(job, JobState.FAILED)
        with pytest.raises(BackendUnavailableError, match="alpha"):
            backend.exec(job, ["true"])
        # by its own clock, for nobody can tell it to
        until_gone(running.processes[0].pid)
        other = backend.submit(spec(run_id, programs.exit_with(0)))
        assert statuses.until(other, JobState.SUCCEEDED).host == "beta"
    finally:
        alpha.restore()

    assert end.reason == Reason(ReasonKind.LEASE)
    assert "alpha was silent" in end.message
    deadline = time.monotonic() + 20
    while True:
        again = backend.submit(spec(run_id, programs.exit_with(0)))
        if statuses.until(again, JobState.SUCCEEDED).host == "alpha":
            break
        assert time.monotonic() < deadline, "the host came back and is not used"


def test_an_agent_that_is_killed_takes_its_jobs_with_it_and_is_replaced(
    backend, statuses, run_id, world
):
    job = backend.submit(spec(run_id, programs.sleep_forever()))
    running = statuses.until(job, JobState.RUNNING)
    host = next(one for one in world.hosts if one.name == running.host)
    (agent,) = [
        int(one.split(":")[0])
        for one in host.jobs()
        if one.endswith(f"ssh/{host.name}") and " agent " in one
    ]

    os.kill(agent, signal.SIGKILL)

    assert statuses.until(job, JobState.FAILED).reason == Reason(ReasonKind.NODE_LOST)
    until_gone(running.processes[0].pid)
    again = backend.submit(spec(run_id, programs.exit_with(0)))
    statuses.until(again, JobState.SUCCEEDED)


def test_a_missing_python_is_named_with_the_fix(opened, context, world):
    text = world.hosts_file.read_text()
    world.hosts_file.write_text(
        re.sub("^python = .*", "python = /no/python", text, flags=re.MULTILINE)
    )

    with pytest.raises(
        BackendUnavailableError, match="there is no Python '/no/python' on host alpha"
    ):
        opened(context).capacity()


def test_a_host_whose_key_is_unknown_is_refused_with_the_line_to_add(
    opened, context, config, world, tmp_path
):
    (tmp_path / "ssh_config").write_text(f"Host *\n  UserKnownHostsFile {tmp_path}/known\n")
    backend = opened(context, config=attrs.evolve(config, config=tmp_path / "ssh_config"))

    with pytest.raises(BackendUnavailableError) as caught:
        backend.capacity()

    for host in world.hosts:
        assert f"add this line to {tmp_path}/known: {host.known_hosts_line}" in str(caught.value)


def test_a_host_with_another_key_is_refused(opened, context, config, world, tmp_path):
    alpha, beta, _ = world.hosts
    _, kind, key = beta.known_hosts_line.split()
    (tmp_path / "known").write_text(f"{alpha.address} {kind} {key}\n")
    (tmp_path / "ssh_config").write_text(f"Host *\n  UserKnownHostsFile {tmp_path}/known\n")
    backend = opened(context, config=attrs.evolve(config, config=tmp_path / "ssh_config"))

    with pytest.raises(BackendUnavailableError, match="not the one that is known"):
        backend.capacity()


def test_a_host_behind_others_is_reached_through_them(opened, context, world, run_id, tmp_path):
    alpha, beta, gamma = world.hosts
    (tmp_path / "jumps").write_text(
        f"Host outer\n  HostName {alpha.address}\n"
        f"Host middle\n  HostName {beta.address}\n  ProxyJump outer\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"Include {tmp_path}/jumps\n"
        f"Host inner\n  HostName {gamma.address}\n  ProxyJump middle\n"
        f"Host *\n  User root\n  IdentityFile {world.key}\n"
        f"  UserKnownHostsFile {world.known_hosts}\n"
    )
    backend = opened(context, config=SshConfig(hosts="inner:2", config=tmp_path / "ssh_config"))
    statuses = StatusReader(backend, run_id)
    job = backend.submit(spec(run_id, ("sh", "-c", "hostname; echo $SSH_NONE")))

    statuses.until(job, JobState.SUCCEEDED)

    assert next(backend.logs(job)) == "gamma"


def test_a_log_in_without_a_key_is_refused(opened, context, world, tmp_path):
    (tmp_path / "ssh_config").write_text(
        f"Host *\n  UserKnownHostsFile {world.known_hosts}\n  IdentityFile {tmp_path}/none\n"
        "  IdentitiesOnly yes\n"
    )
    address = world.hosts[0].address
    backend = opened(
        context, config=SshConfig(hosts=f"root@{address}", config=tmp_path / "ssh_config")
    )

    with pytest.raises(BackendUnavailableError, match="there is no such file.*ssh-copy-id"):
        backend.capacity()


@pytest.fixture
def agent(world, monkeypatch):
    """An ssh-agent that holds the key which hosts accept."""
    words = ["ssh-agent", "-D", "-a", str(world.directory / "agent")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        # it says where it listens once it does
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(world.directory / "agent"))
        subprocess.run(["ssh-add", "-q", str(world.key)], check=True)
        yield world.directory / "agent"
        process.terminate()


def test_a_key_that_ssh_agent_holds_opens_hosts_unless_it_is_configured_away(
    opened, context, world, tmp_path, agent, monkeypatch
):
    config = f"Host *\n  UserKnownHostsFile {world.known_hosts}\n"
    (tmp_path / "with").write_text(config)
    (tmp_path / "without").write_text(f"{config}  IdentityAgent none\n")
    (tmp_path / "named").write_text(f"{config}  IdentityAgent {agent}\n")
    hosts = f"root@{world.hosts[0].address}:2"

    backend = opened(context, config=SshConfig(hosts=hosts, config=tmp_path / "with"))
    assert backend.capacity().cpus == 2
    refused = opened(context, config=SshConfig(hosts=hosts, config=tmp_path / "without"))
    with pytest.raises(BackendUnavailableError, match="ssh-copy-id"):
        refused.capacity()

    # the environment's is of no account then
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nobody"))
    named = opened(context, config=SshConfig(hosts=hosts, config=tmp_path / "named"))
    assert named.capacity().cpus == 2


def test_hosts_that_are_not_named_are_an_error_that_says_how():
    with pytest.raises(ConfigError, match="set FIBER_SSH_HOSTS to a list such as"):
        SshBackend(BackendContext(config=SshConfig()))


def test_the_doctor_finds_every_host_well(backend):
    checks = list(backend.check())

    assert [check for check in checks if not check.ok] == []
    assert {f"host {name}: a job" for name in ("alpha", "beta", "gamma")} <= {
        c.name for c in checks
    }


def test_files_are_sent_by_content(opened, context, config, run_id, tmp_path, monkeypatch, world):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("first")
    (tmp_path / "data" / "big").write_bytes(bytes(range(256)) * 4000)
    monkeypatch.chdir(tmp_path)
    backend = opened(context, config=attrs.evolve(config, send=("data/**",)))
    statuses = StatusReader(backend, run_id)
    read = (
        "python3",
        "-c",
        "print(open('data/words.txt').read(), len(open('data/big','rb').read()))",
    )

    one = backend.submit(spec(run_id, read))
    host = next(h for h in world.hosts if h.name == statuses.until(one, JobState.SUCCEEDED).host)
    assert list(backend.logs(one)) == ["first 1024000"]
    store = host.home / ".cache/fiber/ssh" / host.name / "files"
    sent = {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path("data").iterdir()}
    # there may be files of other runs
    assert sent <= {path.name for path in store.iterdir()}


def test_a_pattern_that_names_nothing_is_an_error_of_the_job(
    opened, context, config, run_id, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    backend = opened(context, config=attrs.evolve(config, send=("data/**",)))
    statuses = StatusReader(backend, run_id)

    job = backend.submit(spec(run_id, programs.exit_with(0)))

    end = statuses.until(job, JobState.FAILED)
    assert end.reason == Reason(ReasonKind.START)
    assert "no such file" in end.message
