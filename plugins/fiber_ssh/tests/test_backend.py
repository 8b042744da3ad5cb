"""The ssh backend beyond the conformance kit: connections, drops, placement, fences, versions."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import pytest

from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import Job, JobState, Reason, ReasonKind
from fiber.testing import programs
from fiber.testing.kit.platform import Driver
from fiber_ssh import agent_link, exec_channel
from fiber_ssh.config import SshConfig
from fiber_ssh.exec_channel import agent_archive
from fiber_ssh.host_state import HostState
from fiber_ssh.hosts import read_hosts
from fiber_ssh.scheduler import JobScheduler
from supervised import until_gone
from waiting import until
from wire_world import in_thread


@pytest.fixture
def driver_with(opened, context, run_id):
    """Maker of a driver of a backend whose context differs in something."""

    def make(**changes):
        backend = opened(context, **changes)
        return Driver(backend, run_id, python=sys.executable, image=None, patience=30.0)

    return make


@pytest.fixture
def driver(driver_with):
    return driver_with()


def reached(driver, job, state):
    """The first status of a job in a state."""
    return driver.until(job, lambda status: status.state is state, state.name)


def is_session(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # the latter since OpenSSH 9.8
    return words.startswith((b"sshd: root@", b"sshd-session: root@"))


def test_jobs_are_spread_over_hosts_of_which_each_has_one_connection(driver, world):
    backend = driver.backend
    backend.capacity()
    jobs = [driver.submit(programs.sleep_forever()) for _ in range(6)]

    # the host with the most free slots is next
    hosts = [reached(driver, job, JobState.RUNNING).host for job in jobs]
    assert hosts == ["alpha", "beta", "gamma"] * 2
    assert [next(backend.logs(job, follow=True)) for job in jobs] == ["ready"] * 6
    backend.exec(jobs[0], ["true"])
    # sshd has two processes for each connection where it gives up privileges, else one
    assert [len([*filter(is_session, host.pids())]) for host in world.hosts] == [1, 1, 1]


def test_jobs_wait_for_slots_with_a_message(driver_with, world):
    text = world.hosts_file.read_text().replace("slots = 32", "slots = 1")
    world.hosts_file.write_text(text)
    driver = driver_with()
    driver.backend.capacity()
    holders = [driver.submit(programs.sleep_forever()) for _ in range(3)]
    waiting = driver.submit(programs.exit_with(3))

    assert reached(driver, waiting, JobState.PENDING).message == (
        "it waits for a free slot; 0 of 3 slots on 3 hosts are free"
    )
    driver.backend.kill(holders[1])
    assert reached(driver, waiting, JobState.FAILED).exit_code == 3
    assert reached(driver, waiting, JobState.RUNNING).host == "beta"


def test_the_start_of_a_job_is_told_also_where_it_ends_at_once(driver):
    jobs = [driver.submit(programs.exit_with(0)) for _ in range(24)]

    for job in jobs:
        reached(driver, job, JobState.SUCCEEDED)
        assert JobState.RUNNING in {status.state for status in driver.statuses(job)}


def test_a_detached_job_is_with_its_host_when_it_is_submitted(driver_with, monkeypatch):
    driver = driver_with()
    driver.backend.capacity()
    reaches_it, is_submitted = threading.Event(), threading.Event()
    send = JobScheduler._send
    monkeypatch.setattr(JobScheduler, "_send", lambda *it: reaches_it.wait(30) and send(*it))

    def submit():
        job = driver.submit(programs.sleep_forever(), detached=True)
        is_submitted.set()
        # as a command does
        driver.backend.close()
        return job

    submitted = in_thread(submit)
    assert not is_submitted.wait(0.2)
    reaches_it.set()
    job = submitted()

    later = driver_with()
    assert [one.id for one in later.backend.list(job.run_id)] == [job.id]
    reached(later, job, JobState.RUNNING)
    later.backend.cleanup(job.run_id)


def test_a_detached_job_that_does_not_reach_its_host_is_no_job(driver, monkeypatch):
    def refuse(*_):
        raise BackendError("its disk is full")

    monkeypatch.setattr(HostState, "send_files", refuse)
    with pytest.raises(SubmitError, match="is on no host: its disk is full"):
        driver.submit(programs.exit_with(0), detached=True)


def test_a_detached_job_that_has_ended_before_its_hosts_answer_comes_is_one(driver, monkeypatch):
    # which is sent again once a connection that has dropped is back
    monkeypatch.setattr(JobScheduler, "_on_answer", lambda *_: None)
    job = driver.submit(programs.exit_with(0), detached=True)
    reached(driver, job, JobState.SUCCEEDED)


def test_a_job_does_not_notice_that_the_connection_dropped(driver, world, capfd):
    code = (
        "import sys, time\nfor n in range(60): print(n, flush=True); time.sleep(0.05)\nsys.exit(7)"
    )
    capfd.readouterr()
    job = driver.submit(("python3", "-I", "-c", code))
    lines = driver.backend.logs(job, follow=True)
    first = [next(lines) for _ in range(5)]

    for host in world.hosts:
        host.drop_sessions()

    # output comes once and in order
    said = [str(n) for n in range(60)]
    assert [*first, *lines] == said
    assert reached(driver, job, JobState.FAILED).reason == Reason(ReasonKind.EXIT, 7)
    driver.backend.close()
    assert capfd.readouterr().out.split() == said


def test_a_silent_host_is_given_up_and_its_jobs_end_by_themselves(driver_with, world):
    driver = driver_with(lease=4.0)
    driver.backend.capacity()
    job = driver.submit(programs.sleep_forever())
    running = reached(driver, job, JobState.RUNNING)
    (alpha, *_) = world.hosts
    assert running.host == "alpha"
    try:
        alpha.cut()
        end = reached(driver, job, JobState.FAILED)
        with pytest.raises(BackendUnavailableError, match="alpha"):
            driver.backend.exec(job, ["true"])
        with pytest.raises(BackendUnavailableError, match="alpha"):
            next(driver.backend.logs(job))
        # by its own clock, for nobody can tell it to
        until_gone(running.processes[0].pid)
        other = driver.submit(programs.exit_with(0))
        assert reached(driver, other, JobState.SUCCEEDED).host == "beta"
    finally:
        alpha.restore()

    assert end.reason == Reason(ReasonKind.LEASE)
    assert "alpha was silent" in end.message

    def is_used_again():
        again = driver.submit(programs.exit_with(0))
        return reached(driver, again, JobState.SUCCEEDED).host == "alpha"

    until(is_used_again)


def test_an_agent_that_is_killed_takes_its_jobs_with_it_and_is_replaced(driver, world):
    job = driver.submit(programs.sleep_forever())
    running = reached(driver, job, JobState.RUNNING)
    host = next(one for one in world.hosts if one.name == running.host)
    (agent,) = [
        int(one.split(":")[0])
        for one in host.jobs()
        if one.endswith(f"ssh/{host.name}") and " agent " in one
    ]

    os.kill(agent, signal.SIGKILL)

    assert reached(driver, job, JobState.FAILED).reason == Reason(ReasonKind.NODE_LOST)
    until_gone(running.processes[0].pid)
    again = driver.submit(programs.exit_with(0))
    reached(driver, again, JobState.SUCCEEDED)


def test_a_host_gets_the_agents_code_once(connect, config, monkeypatch):
    alpha, *_ = read_hosts(config)
    assert connect(alpha).is_up

    digest, _ = agent_archive()
    monkeypatch.setattr(exec_channel, "agent_archive", lambda: (digest, b"no code"))

    assert connect(alpha).is_up


def test_an_agent_of_another_release_is_left_alone_and_named(connect, config, run_id, monkeypatch):
    alpha, *_ = read_hosts(config)
    mine = connect(alpha, run_id)
    assert mine.is_up
    monkeypatch.setattr(agent_link, "JOIN", "join of tomorrow")

    other = connect(alpha, run_id)

    assert not other.is_up
    assert "another release of fiber has jobs there" in other.failure
    assert mine.is_up


def test_a_job_that_no_host_knows_may_be_on_one_that_cannot_be_asked(
    opened, context, config, tmp_path
):
    hosts = tmp_path / "hosts"
    nowhere = "\n[nowhere]\naddress = 127.0.0.1\nport = 1\n"
    hosts.write_text(Path(config.hosts).read_text() + nowhere)
    backend = opened(context, config=attrs.evolve(config, hosts=str(hosts)))
    job = Job(id="there-or-not", name="job", run_id="0", backend="ssh")

    words = "job there-or-not .* not known, for host nowhere cannot be asked: .*; no other ssh host"
    with pytest.raises(BackendUnavailableError, match=words):
        backend.status([job])
    # where it is known which host has it, the others are not asked
    with pytest.raises(UnknownJobError, match=r"there is no job there-or-not"):
        backend.status([attrs.evolve(job, data={"host": "alpha"})])


def test_a_host_whose_key_is_not_the_known_one_is_refused(driver_with, config, world, tmp_path):
    alpha, beta, _ = world.hosts
    (tmp_path / "known").write_text(f"{alpha.address} {beta.known_hosts_line.partition(' ')[2]}\n")
    (tmp_path / "ssh_config").write_text(f"Host *\n  UserKnownHostsFile {tmp_path}/known\n")
    driver = driver_with(config=attrs.evolve(config, config=tmp_path / "ssh_config"))

    with pytest.raises(BackendUnavailableError, match="not the one that is known"):
        driver.backend.capacity()


def test_a_host_behind_others_is_reached_through_them(driver_with, world, tmp_path):
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
    driver = driver_with(config=SshConfig(hosts="inner:2", config=tmp_path / "ssh_config"))
    job = driver.submit(("python", "-c", "import socket; print(socket.gethostname())"))

    reached(driver, job, JobState.SUCCEEDED)

    assert next(driver.backend.logs(job)) == "gamma"


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


def test_a_host_is_opened_by_a_key_that_it_accepts_alone_in_a_file_or_held_by_ssh_agent(
    driver_with, world, tmp_path, agent, monkeypatch
):
    def capacity(*options):
        lines = ["Host *", f"UserKnownHostsFile {world.known_hosts}", *options]
        (tmp_path / "ssh_config").write_text("\n".join(lines))
        config = SshConfig(hosts=f"root@{world.hosts[0].address}:2", config=tmp_path / "ssh_config")
        return driver_with(config=config).backend.capacity().cpus

    assert capacity() == 2
    with pytest.raises(BackendUnavailableError, match="ssh-copy-id"):
        capacity("IdentityAgent none")
    with pytest.raises(BackendUnavailableError, match="there is no such file.*ssh-copy-id"):
        capacity(f"IdentityFile {tmp_path}/none", "IdentitiesOnly yes")
    # the environment's is of no account then
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nobody"))
    assert capacity(f"IdentityAgent {agent}") == 2


def test_a_pattern_that_names_nothing_is_an_error_of_the_job(
    driver_with, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    driver = driver_with(config=attrs.evolve(config, send=("data/**",)))

    job = driver.submit(programs.exit_with(0))

    end = reached(driver, job, JobState.FAILED)
    assert end.reason == Reason(ReasonKind.START)
    assert "no such file" in end.message
    # it has written nothing, and its host has never heard of it
    assert list(driver.backend.logs(job)) == []
