"""A run is led from its members to its end; whatever is missing or lost ends it with a reason."""

import queue
import subprocess
import time

import pytest

from fiber._base import values
from fiber._ring.mpi import messages
from fiber._ring.mpi.arguments import RunSpec
from fiber._ring.mpi.conductor import LAUNCHER, Conductor, Stopped
from fiber._ring.mpi.crew import Lost
from fiber._ring.mpi.hosts import MpiHost
from fiber._ring.mpi.messages import Address
from fiber._ring.mpi.timing import MpiTiming
from fiber._ring.mpi.vigil import Verdict
from fiber.exceptions import FiberError

PLAN = RunSpec(
    program=("./hello",),
    count=3,
    hosts=(MpiHost("member-0", 2), MpiHost("member-1", 1)),
    start_timeout=30.0,
    token="secret",
)


class Stations:
    """Fake member agents that answer at once; tests make some of them fail."""

    def __init__(self):
        self.events = queue.SimpleQueue()
        self.all_sent = []
        #: what mpirun says of its version
        self.version = "mpirun (Open MPI) 4.1.4"
        #: who never comes up, and who reaches nobody
        self.absent, self.alone = set(), set()
        #: where ranks begin
        self.places = {0: "member-0", 1: "member-0", 2: "member-1"}
        #: what a Run of mpirun leads to
        self.on_mpirun = self.begin_ranks
        self.names = []

    def start(self, jobs):
        self.jobs = list(jobs)
        self.names = [name for names in jobs for name in names]
        for number, name in enumerate(self.names):
            if name not in self.absent:
                lo = Address("lo", "127.0.0.1", "127.0.0.0/8")
                self.emit(name, messages.Hello(host="vm", addresses=(lo,), port=4000 + number))

    def emit(self, name, message):
        self.events.put((name, message))

    def get(self, until):
        try:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            return self.events.get(timeout=timeout)
        except queue.Empty:
            return None

    def waits_for(self, name):
        return "no node has room"

    def tell(self, name, message):
        self.all_sent.append((name, message))
        if isinstance(message, messages.Probe):
            reached = {(other, address) for other, address, _ in message.targets}
            self.emit(name, messages.ProbeResult(frozenset(() if name in self.alone else reached)))
        elif isinstance(message, messages.BecomeLauncher):
            self.emit(name, messages.LauncherReady("/run/m-x"))
        elif isinstance(message, messages.SetHostname):
            self.emit(name, messages.HostnameSet(False))
        elif isinstance(message, messages.Run) and name == LAUNCHER:
            self.run(message)

    def run(self, message):
        if message.argv[1:] == ("--version",):
            self.emit(LAUNCHER, messages.Output(message.call, 1, self.version.encode()))
            self.emit(LAUNCHER, messages.Ended(message.call, 0))
        elif message.argv[1:] == ("-c", "import mpi4py.run"):
            self.emit(LAUNCHER, messages.Ended(message.call, 0))
        else:
            self.mpirun = message
            self.on_mpirun(message.call)

    def begin_ranks(self, call):
        for rank, host in self.places.items():
            self.emit(host, messages.RankUp(rank, 100 + rank))
        for rank, host in self.places.items():
            self.emit(host, messages.RankEnded(rank, 0))
        self.emit(LAUNCHER, messages.Output(call, 1, b"hello\n"))
        self.emit(LAUNCHER, messages.Ended(call, 0))

    def sent(self, kind):
        return [(name, message) for name, message in self.all_sent if isinstance(message, kind)]


@pytest.fixture
def stations():
    return Stations()


@pytest.fixture
def output():
    return []


@pytest.fixture
def lead(stations, output):
    def lead(plan=PLAN):
        return Conductor(
            plan,
            stations,
            output=lambda stream, data: output.append(data),
            timing=MpiTiming(),
        ).run()

    return lead


def evolve(**changes):
    return values.evolve(PLAN, **changes)


def test_a_good_run_ends_well(stations, lead, output):
    assert lead() == Verdict(0)

    assert output == [b"hello\n"]
    assert stations.names == [LAUNCHER, "member-0", "member-1"]
    assert sorted((name, go.count) for name, go in stations.sent(messages.ReleaseRanks)) == [
        ("member-0", 2),
        ("member-1", 1),
    ]


def test_mpirun_gets_agent_hosts_and_networks(stations, lead):
    lead(evolve(options=("--map-by", "slot"), env={"A": "b"}))

    words, env = stations.mpirun.argv, stations.mpirun.env
    assert words[:5] == ("mpirun", "-np", "3", "--map-by", "slot")
    assert words[-1] == "./hello"
    assert env["OMPI_MCA_plm_rsh_agent"] == "/run/m-x/rsh : true"
    assert env["OMPI_MCA_orte_default_hostfile"] == "/run/m-x/hostfile"
    assert env["OMPI_MCA_btl_tcp_if_include"] == "127.0.0.0/8"
    assert env["A"] == "b"
    ((_, leading),) = stations.sent(messages.BecomeLauncher)
    assert leading.files["hostfile"] == "member-0 slots=2\nmember-1 slots=1\n"
    assert leading.files["hostfile.hydra"] == "member-0:2\nmember-1:1\n"
    # as an elastic launcher asks it
    script = leading.files["discover_hosts.sh"]
    assert subprocess.check_output(["sh", "-c", script]) == b"member-0:2\nmember-1:1\n"


@pytest.mark.parametrize("launcher_is_member", [False, True])
def test_all_members_or_none_are_used(stations, lead, launcher_is_member):
    stations.absent = {"member-0"}
    plan = evolve(start_timeout=0.1, launcher_is_member=launcher_is_member)
    told = (
        rf"1 of {2 if launcher_is_member else 3} jobs .* none is used: member-0: no node has room"
    )

    with pytest.raises(FiberError, match=told):
        lead(plan)

    assert stations.sent(messages.BecomeLauncher) == []


def test_a_launcher_that_is_a_member_is_one_job_with_the_first_of_them(stations, lead):
    assert lead(evolve(launcher_is_member=True)) == Verdict(0)

    assert stations.jobs == [(LAUNCHER, "member-0"), ("member-1",)]


def test_a_member_that_is_lost_before_is_named_with_its_reason(stations, lead):
    stations.absent = {"member-1"}
    stations.emit("member-1", Lost("the image cannot be pulled"))

    with pytest.raises(FiberError, match="member-1 was lost: the image cannot be pulled"):
        lead()


def test_a_missing_mpirun_is_an_error_with_advice(stations, lead):
    stations.run = lambda run: stations.emit(LAUNCHER, messages.Refused(run.call, "no mpirun"))

    with pytest.raises(FiberError, match=r"no mpirun \(on vm\); install an MPI there"):
        lead()


def test_members_that_cannot_meet_are_named_before_mpirun_is_started(stations, lead):
    stations.alone = {"member-0"}

    with pytest.raises(FiberError, match=r"member-0 \(on vm\) cannot reach member-1"):
        lead()

    assert stations.sent(messages.Run) == []


def test_a_rank_on_the_wrong_member_ends_it_before_any_begins(stations, lead):
    stations.places = {0: "member-0", 1: "member-1", 2: "member-0"}

    verdict = lead()

    assert verdict.code != 0
    assert "rank 1 began on member-1 and belongs on member-0" in verdict.why
    assert stations.sent(messages.ReleaseRanks) == []


def test_an_agent_is_led_to_its_member_and_back(stations, lead):
    def on_mpirun(call):
        stations.emit(LAUNCHER, messages.CommandRequested(-1, "member-1", "orted"))
        stations.emit(LAUNCHER, messages.Input(-1, b"in"))
        stations.emit("member-1", messages.Output(-1, 2, b"out"))
        stations.emit("member-1", messages.Ended(-1, 0))
        stations.begin_ranks(call)

    stations.on_mpirun = on_mpirun

    lead()

    ((_, run),) = [one for one in stations.sent(messages.Run) if one[0] == "member-1"]
    assert (run.call, run.argv) == (-1, ("/bin/sh", "-c", "orted"))
    assert ("member-1", messages.Input(-1, b"in")) in stations.all_sent
    assert (LAUNCHER, messages.Output(-1, 2, b"out")) in stations.all_sent
    assert (LAUNCHER, messages.Ended(-1, 0)) in stations.all_sent


@pytest.mark.parametrize("host", ["elsewhere", LAUNCHER])
def test_an_agent_for_no_member_is_refused(stations, lead, host):
    def on_mpirun(call):
        stations.emit(LAUNCHER, messages.CommandRequested(-1, host, "orted"))
        stations.begin_ranks(call)

    stations.on_mpirun = on_mpirun

    lead()

    ((name, refused),) = stations.sent(messages.Refused)
    assert (name, refused.call) == (LAUNCHER, -1)
    assert f"no member is called {host}; there are member-0, member-1" in refused.why


def test_a_member_that_is_lost_meanwhile_ends_it(stations, lead):
    def on_mpirun(call):
        stations.emit(LAUNCHER, messages.CommandRequested(-1, "member-1", "orted"))
        stations.emit("member-1", Lost("killed by SIGKILL"))
        stations.emit(LAUNCHER, messages.Ended(call, 1))

    stations.on_mpirun = on_mpirun

    assert lead() == Verdict(1, "member-1 (on vm) was lost: killed by SIGKILL")
    assert [refused.call for _, refused in stations.sent(messages.Refused)] == [-1]
    assert (LAUNCHER, messages.Signal(stations.mpirun.call, 15)) in stations.all_sent


def test_a_lost_launcher_is_an_error(stations, lead):
    stations.on_mpirun = lambda call: stations.emit(LAUNCHER, Lost("evicted"))

    with pytest.raises(FiberError, match="launcher .on vm. was lost: evicted"):
        lead()


def test_a_signal_before_mpirun_ends_it_at_once(stations, lead):
    stations.absent = {"member-0"}
    stations.events.put(2)

    with pytest.raises(Stopped):
        lead()


def test_a_deadline_ends_it(stations, lead):
    def on_mpirun(call):
        for rank, host in stations.places.items():
            stations.emit(host, messages.RankUp(rank, 1))

    stations.on_mpirun = on_mpirun
    tell = stations.tell

    def end_when_asked(name, message):
        tell(name, message)
        if isinstance(message, messages.Signal):
            stations.emit(LAUNCHER, messages.Ended(message.call, -message.number))

    stations.tell = end_when_asked

    assert "longer than its deadline of 0.1 s" in lead(evolve(deadline=0.1)).why


@pytest.mark.parametrize(
    "program, run",
    [
        ("python3 prog.py -x", "python3 -m mpi4py prog.py -x"),
        ("python3 -m prog", "python3 -m prog"),
        ("./python.sh.bin x", "./python.sh.bin x"),
        ("python3", "python3"),
    ],
)
def test_a_script_of_pythons_aborts_all_ranks_when_it_raises(stations, lead, program, run):
    lead(evolve(program=tuple(program.split())))

    words = ("fiber-rank", *run.split())
    assert stations.mpirun.argv[-len(words) :] == words


def test_open_mpi_5_on_one_host_without_names_of_their_own_is_refused(stations, lead):
    stations.version = "mpirun (Open MPI) 5.0.11"

    with pytest.raises(FiberError, match="Open MPI 5.0.11 tells members by .* with --slots 3"):
        lead()


def test_a_launcher_of_the_users_own_is_run_as_it_is(stations, lead):
    stations.on_mpirun = lambda call: stations.emit(LAUNCHER, messages.Ended(call, 4))

    assert lead(evolve(count=0, program=("sh", "-c", "mpirun x"))) == Verdict(4)
    assert stations.mpirun.argv == ("sh", "-c", "mpirun x")
