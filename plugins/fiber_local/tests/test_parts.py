"""Parts of the local backend: statuses, logs, devices, the doctor's checks, its plugin."""

import resource
import sys

import pytest

from fiber._agent import rundir
from fiber.backend_parts.feed import Feed
from fiber.backend_parts.logfile import read_log
from fiber.exceptions import BackendError, FiberError, ResourceError
from fiber.model import Job, JobState, JobStatus, Peers, Timing
from fiber.testing import FakeProvider
from fiber_local import checks
from fiber_local.checks import run_checks
from fiber_local.config import LocalConfig
from fiber_local.host_jobs import JournalFollower
from fiber_local.plugin import fiber_listen_address
from fiber_local.supervisors import HostDevices

RUNNING = JobStatus(state=JobState.RUNNING)
ENDED = JobStatus(state=JobState.FAILED, exit_code=1)


def job(name):
    return Job(id=name, name=name, run_id="0badcafe", backend="local")


def states(changes):
    return [(found.id, status.state) for found, status in changes]


def test_jobs_of_others_are_followed_between():
    feed = Feed()
    looks = [[(job("o"), RUNNING)], [(job("o"), ENDED)]]
    follower = JournalFollower(
        lambda: looks.pop(0) if looks else [], lambda found: found.id == "a", is_open=False
    )
    events = feed.events("0badcafe", follower.changes, 0.01)
    assert states([next(events)]) == [("o", JobState.RUNNING)]
    feed.publish(job("a"), RUNNING)
    found = states([next(events), next(events)])
    feed.close()

    assert sorted(found, key=str) == [("a", JobState.RUNNING), ("o", JobState.FAILED)]
    assert states(events) == []


@pytest.mark.parametrize("tail", [None, 2])
def test_following_a_log_reads_what_was_written_before_the_end_was_seen(tmp_path, tail):
    log = tmp_path / "log"
    pieces = [b"one\ntw", b"o\nlast \xff"]
    if tail is not None:
        log.write_bytes(b"none\none\ntw")
        pieces[0] = b""

    def is_over():
        with log.open("ab") as file:
            file.write(pieces.pop(0))
        return not pieces

    lines = list(read_log(log, interval=0.01, tail=tail, is_over=is_over))
    assert lines == ["one", "two", "last \ufffd"]


class Broken(FakeProvider):
    """One whose probe fails."""

    def probe(self):
        return (sys.executable, "-c", "raise SystemExit('no driver')")


class TestDevices:
    @pytest.mark.parametrize(
        "providers, kind, words",
        [
            ({"fake": FakeProvider()}, "gpu", "'gpu' devices is installed; installed are: fake"),
            ({}, "gpu", "installed are: none"),
            ({"fake": Broken()}, "fake", "no driver"),
        ],
    )
    def test_what_cannot_be_found_is_an_error_each_time(self, providers, kind, words):
        devices = HostDevices(providers)
        for _ in range(2):
            with pytest.raises(ResourceError, match=words):
                devices.find(kind)


class TestDoctor:
    @staticmethod
    def found(**providers):
        return {check.name: check for check in run_checks(providers, Timing())}

    def test_a_sound_host_passes(self):
        result = self.found(fake=FakeProvider(2))

        assert all(check.ok for check in result.values()), result
        assert "its exit code came back" in result["a job from start to end"].detail
        assert result["fake devices"].detail == "Fake, Fake"
        assert (result["limits"].missing == ()) == ("are enforced" in result["limits"].detail)
        assert list(rundir.run_root().glob("check-*")) == []

    def test_a_host_without_devices_is_sound_and_a_broken_probe_is_named_with_what_to_do(self):
        none = checks._check_devices(HostDevices({"fake": FakeProvider(0)}), "fake")
        assert (none.ok, none.detail) == (True, "none on this host")

        broken = checks._check_devices(HostDevices({"fake": Broken()}), "fake")
        assert not broken.ok
        assert "no driver" in broken.detail
        assert "by hand" in broken.fix

    def test_run_directories_that_cannot_be_had_are_named_with_what_to_do(self, monkeypatch):
        def refuse():
            raise FiberError("/run/x is open to other users")

        monkeypatch.setattr(checks.rundir, "run_root", refuse)
        check = self.found()["run directories"]

        assert (check.ok, check.detail) == (False, "/run/x is open to other users")
        assert "XDG_RUNTIME_DIR" in check.fix

    @pytest.mark.parametrize(
        "limit, words",
        [(resource.RLIM_INFINITY, "no limit"), (8192, "up to 8192"), (1024, "up to 1024")],
    )
    def test_too_few_descriptors_for_a_thousand_workers_are_told(self, monkeypatch, limit, words):
        monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (512, limit))
        check = checks._check_descriptors()
        assert check.detail.startswith(f"{words};")
        assert (check.ok, check.fix) == (
            (False, "raise the hard limit: ulimit -Hn 8192") if limit == 1024 else (True, "")
        )

    @pytest.mark.parametrize("code", [0, 1])
    def test_a_job_that_ends_otherwise_is_a_fault(self, code):
        status = JobStatus(state=JobState.FAILED, exit_code=code, message=f"ended with {code}")

        check = checks._judge_job("a job", status, 1.0)

        assert not check.ok
        assert f"it was to exit with 42 and ended with {code}" in check.detail
        assert check.fix

    def test_a_host_whose_jobs_do_not_start_is_not_sound(self, monkeypatch):
        def refuse(*_, **__):
            raise BackendError("no room")

        monkeypatch.setattr(checks.Supervisors, "submit", refuse)
        check = self.found()["a job from start to end"]
        assert (check.ok, check.detail) == (False, "no room")
        assert "import fiber" in check.fix

    def test_limits_that_are_not_enforced_are_no_fault_and_have_a_fix(self):
        (check,) = checks._judge_limits({"memory_limit": ["no cgroup"], "cpu_limit": []})

        assert (check.ok, check.missing) == (True, ("memory_limit",))
        assert "no cgroup" in check.detail
        assert "Delegate=yes" in check.fix


HERE = "unix" if sys.platform == "linux" else "ipc"


@pytest.mark.parametrize(
    "config, url",
    [
        (None, f"{HERE}:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(), f"{HERE}:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(transport="ipc"), "ipc:///run/fiber/0badcafe/m0.sock"),
        (LocalConfig(transport="tls"), "tls+tcp://127.0.0.1:0"),
    ],
)
def test_peers_meet_at_a_socket_in_the_run_directory_unless_the_setting_differs(config, url):
    peers = Peers(same_host=True, directory="/run/fiber/0badcafe", name="m0", config=config)

    address = fiber_listen_address("local", peers)

    assert (address.bind_url, address.advertise_host) == (url, None)
    # other backends answer for themselves
    assert fiber_listen_address("docker", peers) is None


@pytest.mark.parametrize("value", [-1.0, -0.001])
def test_a_negative_timeout_is_refused(value):
    with pytest.raises(ValueError, match="idle_exit"):
        LocalConfig(idle_exit=value)
