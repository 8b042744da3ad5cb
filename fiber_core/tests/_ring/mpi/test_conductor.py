"""A run is led from its members to its end; whatever is missing or lost ends it with a reason."""

import queue
import signal
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._base import values
from fiber._ring.mpi import messages
from fiber._ring.mpi.arguments import RunSpec
from fiber._ring.mpi.conductor import LAUNCHER, Conductor, Stopped
from fiber._ring.mpi.crew import Lost
from fiber._ring.mpi.hosts import MpiHost
from fiber._ring.mpi.messages import Address
from fiber._ring.mpi.timing import MpiTiming
from fiber._ring.mpi.vigil import Begin, Send, Verdict, Vigil, ended_how
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
        #: mpirun, once it was started
        self.mpirun = None

    def start(self, jobs):
        self.names = [name for names in jobs for name in names]
        for number, name in enumerate(self.names):
            if name not in self.absent:
                lo = Address("lo", "127.0.0.1", "127.0.0.0/8", 1)
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
            is_alone = name in self.alone
            reached = {one.index: () if is_alone else one.ips for one in message.targets}
            self.emit(name, messages.ProbeResult(reached, {}))
        elif isinstance(message, messages.BecomeLauncher):
            self.emit(name, messages.LauncherReady("/run/m-x"))
        elif isinstance(message, messages.SetHostname):
            self.emit(name, messages.HostnameSet(False))
        elif isinstance(message, messages.Run) and name == LAUNCHER:
            self.run(message)
        elif isinstance(message, messages.Signal):
            self.emit(LAUNCHER, messages.Ended(message.call, -message.number))

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
            plan, stations, output=lambda stream, data: output.append(data), timing=MpiTiming()
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


def lose_member(stations):
    stations.absent = {"member-1"}
    stations.emit("member-1", Lost("the image cannot be pulled"))


def isolate_member(stations):
    stations.alone = {"member-0"}


def remove_mpirun(stations):
    stations.run = lambda run: stations.emit(LAUNCHER, messages.Refused(run.call, "no mpirun"))


def upgrade_mpirun(stations):
    stations.version = "mpirun (Open MPI) 5.0.11"


@pytest.mark.parametrize(
    "fault, told",
    [
        (lose_member, "member-1 was lost: the image cannot be pulled"),
        (isolate_member, r"member-0 \(on vm\) cannot reach member-1"),
        (remove_mpirun, r"no mpirun \(on vm\); install an MPI there"),
        # hosts have no names of their own here
        (upgrade_mpirun, "Open MPI 5.0.11 tells members by .* with --slots 3"),
    ],
)
def test_what_is_missing_is_said_before_mpirun_is_started(stations, lead, fault, told):
    fault(stations)

    with pytest.raises(FiberError, match=told):
        lead()

    assert stations.mpirun is None


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


def test_a_signal_while_mpirun_runs_ends_that_first(stations, lead):
    stations.on_mpirun = lambda call: stations.events.put(2)

    assert lead() == Verdict(130, is_asked=True)
    assert (LAUNCHER, messages.Signal(stations.mpirun.call, 15)) in stations.all_sent


def test_a_deadline_ends_it(stations, lead):
    stations.on_mpirun = lambda call: None

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


def test_a_launcher_of_the_users_own_is_run_as_it_is(stations, lead):
    stations.on_mpirun = lambda call: stations.emit(LAUNCHER, messages.Ended(call, 4))

    assert lead(evolve(count=0, program=("sh", "-c", "mpirun x"))) == Verdict(4)
    assert stations.mpirun.argv == ("sh", "-c", "mpirun x")


TIMING = MpiTiming()
TERM, KILL = [Send(signal.SIGTERM)], [Send(signal.SIGKILL)]


@pytest.fixture
def vigil():
    return watching(3, MpiHost("a", 2), MpiHost("b", 1))


def watching(count, *hosts, strict=True):
    return Vigil(count, hosts, strict=strict, start_timeout=60.0, now=0.0, timing=TIMING)


def begin(vigil):
    for rank, host in enumerate("aab"):
        instructions = vigil.rank_up(rank, host, 1.0)
    return instructions


def test_where_the_user_maps_ranks_any_place_with_room_will_do():
    vigil = watching(2, MpiHost("a"), MpiHost("b"), strict=False)

    vigil.rank_up(0, "b", 1.0)

    assert len(vigil.rank_up(1, "a", 1.0)) == 2


@pytest.mark.parametrize("code", [0, 125, 213])
def test_an_mpirun_that_used_other_hosts_has_failed_unless_it_has_printed_the_reason(vigil, code):
    verdict = vigil.ended(code)

    assert verdict.code == (code or 1)
    assert ("ranks 0, 1, 2 never began on a member" in verdict.why) == (code != 213)


def test_ranks_that_never_come_are_not_waited_for(vigil):
    vigil.rank_up(0, "a", 1.0)
    assert vigil.tick(59.0) == []

    assert vigil.tick(60.0) == TERM
    assert "within 60 s: ranks 1, 2 never began" in vigil.ended(0).why


def test_a_normal_end_says_nothing_and_an_mpirun_that_stays_after_its_ranks_is_ended(vigil):
    begin(vigil)
    for rank in range(3):
        vigil.rank_ended(rank, 0, 5.0)
    assert vigil.ended(0) == Verdict(0)

    over = 5.0 + TIMING.after_all
    assert vigil.tick(over - 0.1) == []
    assert vigil.tick(over) == TERM
    # nothing has failed
    assert vigil.ended(143) == Verdict(0)


@pytest.mark.parametrize(
    "code, how", [(3, "ended with 3"), (137, "was killed by SIGKILL"), (250, "ended with 250")]
)
def test_the_first_rank_that_fails_is_named(vigil, code, how):
    begin(vigil)
    vigil.rank_ended(2, code, 5.0)
    vigil.rank_ended(0, 143, 5.0)

    assert vigil.ended(code) == Verdict(code, f"rank 2 on b {how}")
    assert ended_how(code) == how


@pytest.mark.parametrize(
    "rank, own, code",
    [(3, 0, 3), (3, 255, 3), (3, 14, 3), (143, 7, 7), (137, 137, 137), (137, 0, 137)],
)
def test_its_code_is_the_ranks_unless_that_was_killed_for_anothers_failure(vigil, rank, own, code):
    begin(vigil)
    vigil.rank_ended(2, rank, 5.0)

    assert vigil.ended(own).code == code


def test_an_mpirun_that_waits_for_a_dead_rank_is_asked_to_end_then_killed_and_then_given_up(vigil):
    begin(vigil)
    vigil.rank_ended(1, 3, 5.0)
    due = 5.0
    for wait, instructions in (
        (TIMING.after_failure, TERM),
        (TIMING.after_signal, KILL),
        (TIMING.after_signal, []),
    ):
        assert not vigil.is_given_up
        due += wait
        assert vigil.tick(due - 0.1) == []
        assert vigil.tick(due) == instructions

    assert vigil.is_given_up
    assert vigil.ended(-9) == Verdict(3, "rank 1 on a ended with 3")


def test_a_killed_mpirun_is_reported_and_signals_end_one_of_which_a_second_kills(vigil):
    begin(vigil)
    assert vigil.ended(-9) == Verdict(137, "mpirun was killed by SIGKILL")

    assert vigil.interrupted(signal.SIGINT, 5.0) == TERM
    assert vigil.interrupted(signal.SIGINT, 5.1) == KILL
    assert vigil.ended(-9) == Verdict(130, is_asked=True)


EVENTS = st.one_of(
    st.tuples(st.just("up"), st.integers(0, 3), st.sampled_from("abc")),
    st.tuples(st.just("ended"), st.integers(0, 3), st.sampled_from([0, 1, 137])),
    st.tuples(st.just("lost"), st.sampled_from("ab"), st.just("gone")),
    st.tuples(st.just("signal"), st.just(2), st.just(None)),
    st.tuples(st.just("tick"), st.just(0), st.just(None)),
)


def happen(vigil, kind, first, second, now):
    if kind == "up":
        return vigil.rank_up(first, second, now)
    if kind == "ended":
        return vigil.rank_ended(first, second, now)
    if kind == "lost":
        return vigil.lost(first, second, now)
    return vigil.interrupted(first, now) if kind == "signal" else vigil.tick(now)


@given(events=st.lists(EVENTS, max_size=30), code=st.sampled_from([0, 1, -9]))
def test_whatever_happens_ranks_begin_once_in_their_places_and_an_end_is_in_sight(events, code):
    vigil = watching(2, MpiHost("a"), MpiHost("b"))
    begun, signals, now = [], [], 0.0
    for kind, first, second in events:
        now += 1.0
        if kind == "tick" and vigil.deadline is not None:
            now = max(now, vigil.deadline)
        instructions = happen(vigil, kind, first, second, now)
        begun += [one for one in instructions if isinstance(one, Begin)]
        signals += [one.number for one in instructions if isinstance(one, Send)]
    assert begun in ([], [Begin("a", 1), Begin("b", 1)], [Begin("b", 1), Begin("a", 1)])
    assert signals[:1] in ([], [signal.SIGTERM])
    assert set(signals[1:]) <= {signal.SIGKILL}
    if signals:
        # what was asked to end is killed, and then given up
        for _ in range(3):
            if vigil.deadline is not None:
                vigil.tick(vigil.deadline)
        assert vigil.is_given_up
    if not begun and code == 0 and not signals:
        assert vigil.ended(code).code != 0
