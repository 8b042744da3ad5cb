"""A run is led from its members to its end; whatever is missing or lost ends it with a reason."""

import re
import signal
import subprocess
from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._base import values
from fiber._ring import events
from fiber._ring.machine import RingMachine
from fiber._ring.model import Failure, Host, MpiTiming
from fiber._ring.mpi import messages
from fiber._ring.mpi.ranks import Begin, MpiHost, RankMonitor, Send, Verdict, ended_how
from fiber._ring.mpi.run import MpiProtocol, gang
from fiber._ring.mpi.spec import LAUNCHER, RunSpec
from fiber._ring.protocol import Address, Hello, Probe, ProbeResult
from fiber._ring.workers import Connections, WorkerHandle

TIMING = MpiTiming()
PLAN = RunSpec(
    program=("./hello",),
    count=3,
    hosts=(MpiHost("member-0", 2), MpiHost("member-1", 1)),
    start_timeout=30.0,
)


class Members:
    """A gang without threads, whose fake member agents answer at once; tests make some of them fail."""

    def __init__(self):
        self.now = 0.0
        #: what happens next, and later
        self.soon, self.timers = deque(), []
        self.all_sent, self.output, self.ended = [], [], []
        #: what mpirun says of its version
        self.version = "mpirun (Open MPI) 4.1.4"
        #: who never comes up, who fails to, and who reaches nobody
        self.absent, self.failing, self.alone = set(), {}, set()
        #: where ranks begin
        self.places = {0: "member-0", 1: "member-0", 2: "member-1"}
        #: what a Run of mpirun leads to
        self.on_mpirun = self.begin_ranks
        #: mpirun, once it was started
        self.mpirun = None
        self.handles, self.slots = {}, {}
        self.failure, self.is_over = None, False

    # -- in place of the controller

    def lead(self, plan=PLAN):
        """Run to the end; the verdict, or what the command fails with."""
        groups, policy = gang(plan, TIMING)
        self.machine = RingMachine(groups, policy)
        self.members = list(plan.jobs())
        self.protocol = MpiProtocol(
            plan,
            output=lambda stream, data: self.output.append(data),
            timing=TIMING,
            clock=lambda: self.now,
        )
        self.protocol.connect(
            Connections(
                handles=self.handles, bounds=None, feed=self.feed, call_later=self.call_later
            )
        )
        self.feed(events.StartRequested())
        while not self.is_over:
            self.turn()
        assert sorted(self.ended) == sorted(self.handles)
        return self.protocol.verdict or self.failure.message

    def turn(self):
        if self.soon:
            self.soon.popleft()()
            return
        dues = [when for when, timer in self.timers if timer.callback]
        self.now = min(d for d in [*dues, self.machine.next_deadline()] if d is not None)
        for when, timer in list(self.timers):
            if timer.callback and when <= self.now:
                timer.callback, callback = None, timer.callback
                callback()
        self.feed(events.Tick())

    def call_later(self, delay, callback):
        timer = SimpleNamespace(callback=callback)
        timer.cancel = lambda: setattr(timer, "callback", None)
        self.timers.append((self.now + delay, timer))
        return timer

    def feed(self, event):
        for command in self.machine.handle(event, self.now):
            if isinstance(command, events.StartWorker):
                self.begin(command)
            elif isinstance(command, events.EndWorker):
                self.ended.append(command.worker)
                self.soon.append(lambda n=command.worker: self.feed(events.WorkerEnded(n)))
            elif isinstance(command, events.Conclude):
                self.failure = command.failure
            elif isinstance(command, events.CleanUp):
                self.is_over = True
            else:
                self.protocol.execute(command)

    def begin(self, command):
        worker = self.handles[command.worker] = WorkerHandle(
            command.worker, command.group, is_agent=True
        )
        for slot, name in enumerate(self.members[command.seat]):
            self.slots[name] = worker, slot
            worker.ends.append(SimpleNamespace(send=lambda m, name=name: self.tell(name, m)))
            if name in self.failing:
                self.lose(name, self.failing[name])
            elif name not in self.absent:
                lo = Address("127.0.0.1", "lo", "127.0.0.0/8", 1)
                hello = Hello(
                    host=Host("vm", "vm"), pid=1, addresses=(lo,), port=4000, proof=name.encode()
                )
                self.soon.append(lambda w=worker, s=slot, h=hello: self.greet(w, s, h))
            else:
                self.feed(events.WorkerPending(command.worker, "no node has room"))

    def greet(self, worker, slot, hello):
        worker.hellos[slot] = hello
        if worker.is_up:
            self.feed(events.WorkerUp(worker.number, hello.host))

    def lose(self, name, why):
        worker, slot = self.slots[name]
        worker.closed_slots.add(slot)
        lost = Failure(reason="SIGNAL(9)", message=why)

        def happen():
            failure = self.protocol.located(lost, worker, slot)
            self.ended.append(worker.number)
            self.feed(events.WorkerEnded(worker.number, failure))

        self.soon.append(happen)

    # -- member agents

    def emit(self, name, message):
        self.soon.append(lambda: self.protocol.receive(*self.slots[name], message))

    def tell(self, name, message):
        self.all_sent.append((name, message))
        if isinstance(message, Probe):
            is_alone = name in self.alone
            reached = {one.index: () if is_alone else one.ips for one in message.targets}
            self.emit(name, ProbeResult(reached, {}))
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
def members():
    return Members()


@pytest.fixture
def lead(members):
    return members.lead


def evolve(**changes):
    return values.evolve(PLAN, **changes)


def test_a_good_run_ends_well(members, lead):
    assert lead() == Verdict(0)

    assert members.output == [b"hello\n"]
    assert members.failure is None
    assert {name for name, _ in members.sent(Probe)} == {LAUNCHER, "member-0", "member-1"}
    assert sorted((name, go.count) for name, go in members.sent(messages.ReleaseRanks)) == [
        ("member-0", 2),
        ("member-1", 1),
    ]


def test_mpirun_gets_agent_hosts_and_networks(members, lead):
    lead(evolve(options=("--map-by", "slot"), env={"A": "b"}))

    words, env = members.mpirun.argv, members.mpirun.env
    assert words[:5] == ("mpirun", "-np", "3", "--map-by", "slot")
    assert words[-1] == "./hello"
    assert env["OMPI_MCA_plm_rsh_agent"] == "/run/m-x/rsh : true"
    assert env["OMPI_MCA_orte_default_hostfile"] == "/run/m-x/hostfile"
    assert env["OMPI_MCA_btl_tcp_if_include"] == "127.0.0.0/8"
    assert env["A"] == "b"
    ((_, leading),) = members.sent(messages.BecomeLauncher)
    assert leading.files["hostfile"] == "member-0 slots=2\nmember-1 slots=1\n"
    assert leading.files["hostfile.hydra"] == "member-0:2\nmember-1:1\n"
    # as an elastic launcher asks it
    script = leading.files["discover_hosts.sh"]
    assert subprocess.check_output(["sh", "-c", script]) == b"member-0:2\nmember-1:1\n"


@pytest.mark.parametrize("launcher_is_member, jobs", [(False, 3), (True, 2)])
def test_all_members_or_none_are_used(members, lead, launcher_is_member, jobs):
    members.absent = {"member-0"}

    assert lead(evolve(launcher_is_member=launcher_is_member)) == (
        f"{jobs - 1} of {jobs} members came up within 30 s, so none was run; missing: member-0 "
        "(no node has room)"
    )
    assert members.sent(Probe) == []


def lose_member(members):
    members.failing = {"member-1": "the image cannot be pulled"}


def isolate_member(members):
    members.alone = {"member-0"}


def remove_mpirun(members):
    members.run = lambda run: members.emit(LAUNCHER, messages.Refused(run.call, "no mpirun"))


def upgrade_mpirun(members):
    members.version = "mpirun (Open MPI) 5.0.11"


@pytest.mark.parametrize(
    "fault, told",
    [
        (lose_member, "member-1 was lost: the image cannot be pulled"),
        (isolate_member, r"member-0 \(vm\) cannot reach member-1"),
        (remove_mpirun, r"no mpirun \(on vm\); install an MPI there"),
        # hosts have no names of their own here
        (upgrade_mpirun, "Open MPI 5.0.11 tells members by .* with --slots 3"),
    ],
)
def test_what_is_missing_is_said_before_mpirun_is_started(members, lead, fault, told):
    fault(members)

    assert re.match(told, lead())
    assert members.mpirun is None


def test_a_rank_on_the_wrong_member_ends_it_before_any_begins(members, lead):
    members.places = {0: "member-0", 1: "member-1", 2: "member-0"}

    verdict = lead()

    assert verdict.code != 0
    assert "rank 1 began on member-1 and belongs on member-0" in verdict.why
    assert members.sent(messages.ReleaseRanks) == []


def test_an_agent_is_led_to_its_member_and_back(members, lead):
    def on_mpirun(call):
        members.emit(LAUNCHER, messages.CommandRequested(-1, "member-1", "orted"))
        members.emit(LAUNCHER, messages.Input(-1, b"in"))
        members.emit("member-1", messages.Output(-1, 2, b"out"))
        members.emit("member-1", messages.Ended(-1, 0))
        members.begin_ranks(call)

    members.on_mpirun = on_mpirun

    lead()

    ((_, run),) = [one for one in members.sent(messages.Run) if one[0] == "member-1"]
    assert (run.call, run.argv) == (-1, ("/bin/sh", "-c", "orted"))
    assert ("member-1", messages.Input(-1, b"in")) in members.all_sent
    assert (LAUNCHER, messages.Output(-1, 2, b"out")) in members.all_sent
    assert (LAUNCHER, messages.Ended(-1, 0)) in members.all_sent


@pytest.mark.parametrize("host", ["elsewhere", LAUNCHER])
def test_an_agent_for_no_member_is_refused(members, lead, host):
    def on_mpirun(call):
        members.emit(LAUNCHER, messages.CommandRequested(-1, host, "orted"))
        members.begin_ranks(call)

    members.on_mpirun = on_mpirun

    lead()

    ((name, refused),) = members.sent(messages.Refused)
    assert (name, refused.call) == (LAUNCHER, -1)
    assert f"no member is called {host}; there are member-0, member-1" in refused.why


def test_a_member_that_is_lost_meanwhile_ends_it(members, lead):
    def on_mpirun(call):
        members.emit(LAUNCHER, messages.CommandRequested(-1, "member-1", "orted"))
        members.lose("member-1", "killed by SIGKILL")

    members.on_mpirun = on_mpirun

    assert lead() == Verdict(1, "member-1 (on vm) was lost: killed by SIGKILL")
    assert [refused.call for _, refused in members.sent(messages.Refused)] == [-1]
    assert (LAUNCHER, messages.Signal(members.mpirun.call, 15)) in members.all_sent


def test_a_lost_launcher_is_an_error(members, lead):
    members.on_mpirun = lambda call: members.lose(LAUNCHER, "evicted")

    assert lead() == "launcher (on vm) was lost: evicted"


def test_a_launcher_that_is_lost_while_mpirun_is_to_end_is_not_waited_for(members, lead):
    def lose_both(call):
        members.lose("member-1", "evicted")
        members.soon.append(lambda: members.handles[1].closed_slots.add(0))
        members.soon.append(members.protocol.check_replies)

    members.on_mpirun = lose_both
    # mpirun ignores its signals
    answer = members.tell
    members.tell = lambda name, m: None if isinstance(m, messages.Signal) else answer(name, m)

    assert lead() == "member-1 (on vm) was lost: evicted"
    assert members.now < TIMING.after_signal


def test_a_signal_before_mpirun_ends_it_at_once(members, lead):
    members.absent = {"member-0"}
    members.soon.append(lambda: members.protocol.interrupted(2))

    assert lead() == "terminated by its user"
    assert members.now < PLAN.start_timeout


def test_a_signal_while_mpirun_runs_ends_that_first(members, lead):
    members.on_mpirun = lambda call: members.soon.append(lambda: members.protocol.interrupted(2))

    assert lead() == Verdict(130, is_asked=True)
    assert (LAUNCHER, messages.Signal(members.mpirun.call, 15)) in members.all_sent


def test_a_deadline_ends_it(members, lead):
    members.on_mpirun = lambda call: None

    assert lead(evolve(deadline=9.0)) == Verdict(1, "it was not done within 9 s")
    assert (LAUNCHER, messages.Signal(members.mpirun.call, 15)) in members.all_sent


@pytest.mark.parametrize(
    "program, run",
    [
        ("python3 prog.py -x", "python3 -m mpi4py prog.py -x"),
        ("python3 -m prog", "python3 -m prog"),
        ("./python.sh.bin x", "./python.sh.bin x"),
        ("python3", "python3"),
    ],
)
def test_a_script_of_pythons_aborts_all_ranks_when_it_raises(members, lead, program, run):
    lead(evolve(program=tuple(program.split())))

    words = ("fiber-rank", *run.split())
    assert members.mpirun.argv[-len(words) :] == words


def test_a_launcher_of_the_users_own_is_run_as_it_is(members, lead):
    members.on_mpirun = lambda call: members.emit(LAUNCHER, messages.Ended(call, 4))

    assert lead(evolve(count=0, program=("sh", "-c", "mpirun x"))) == Verdict(4)
    assert members.mpirun.argv == ("sh", "-c", "mpirun x")


TERM, KILL = [Send(signal.SIGTERM)], [Send(signal.SIGKILL)]


@pytest.fixture
def monitor():
    return watching(3, MpiHost("a", 2), MpiHost("b", 1))


def watching(count, *hosts, strict=True):
    return RankMonitor(count, hosts, strict=strict, start_timeout=60.0, now=0.0, timing=TIMING)


def begin(monitor):
    for rank, host in enumerate("aab"):
        instructions = monitor.rank_up(rank, host, 1.0)
    return instructions


def test_where_the_user_maps_ranks_any_place_with_room_will_do():
    monitor = watching(2, MpiHost("a"), MpiHost("b"), strict=False)

    monitor.rank_up(0, "b", 1.0)

    assert len(monitor.rank_up(1, "a", 1.0)) == 2


@pytest.mark.parametrize("code", [0, 125, 213])
def test_an_mpirun_that_used_other_hosts_has_failed_unless_it_has_printed_the_reason(monitor, code):
    verdict = monitor.ended(code)

    assert verdict.code == (code or 1)
    assert ("ranks 0, 1, 2 never began on a member" in verdict.why) == (code != 213)


def test_ranks_that_never_come_are_not_waited_for(monitor):
    monitor.rank_up(0, "a", 1.0)
    assert monitor.tick(59.0) == []

    assert monitor.tick(60.0) == TERM
    assert "within 60 s: ranks 1, 2 never began" in monitor.ended(0).why


def test_a_normal_end_says_nothing_and_an_mpirun_that_stays_after_its_ranks_is_ended(monitor):
    begin(monitor)
    for rank in range(3):
        monitor.rank_ended(rank, 0, 5.0)
    assert monitor.ended(0) == Verdict(0)

    over = 5.0 + TIMING.after_all
    assert monitor.tick(over - 0.1) == []
    assert monitor.tick(over) == TERM
    # nothing has failed
    assert monitor.ended(143) == Verdict(0)


@pytest.mark.parametrize(
    "code, how", [(3, "ended with 3"), (137, "was killed by SIGKILL"), (250, "ended with 250")]
)
def test_the_first_rank_that_fails_is_named(monitor, code, how):
    begin(monitor)
    monitor.rank_ended(2, code, 5.0)
    monitor.rank_ended(0, 143, 5.0)

    assert monitor.ended(code) == Verdict(code, f"rank 2 on b {how}")
    assert ended_how(code) == how


@pytest.mark.parametrize(
    "rank, own, code",
    [(3, 0, 3), (3, 255, 3), (3, 14, 3), (143, 7, 7), (137, 137, 137), (137, 0, 137)],
)
def test_its_code_is_the_ranks_unless_that_was_killed_for_anothers_failure(
    monitor, rank, own, code
):
    begin(monitor)
    monitor.rank_ended(2, rank, 5.0)

    assert monitor.ended(own).code == code


def test_an_mpirun_that_waits_for_a_dead_rank_is_asked_to_end_then_killed_and_then_given_up(
    monitor,
):
    begin(monitor)
    monitor.rank_ended(1, 3, 5.0)
    due = 5.0
    for wait, instructions in (
        (TIMING.after_failure, TERM),
        (TIMING.after_signal, KILL),
        (TIMING.after_signal, []),
    ):
        assert not monitor.is_given_up
        due += wait
        assert monitor.tick(due - 0.1) == []
        assert monitor.tick(due) == instructions

    assert monitor.is_given_up
    assert monitor.ended(-9) == Verdict(3, "rank 1 on a ended with 3")


def test_a_killed_mpirun_is_reported_and_signals_end_one_of_which_a_second_kills(monitor):
    begin(monitor)
    assert monitor.ended(-9) == Verdict(137, "mpirun was killed by SIGKILL")

    assert monitor.interrupted(signal.SIGINT, 5.0) == TERM
    assert monitor.interrupted(signal.SIGINT, 5.1) == KILL
    assert monitor.ended(-9) == Verdict(130, is_asked=True)


EVENTS = st.one_of(
    st.tuples(st.just("up"), st.integers(0, 3), st.sampled_from("abc")),
    st.tuples(st.just("ended"), st.integers(0, 3), st.sampled_from([0, 1, 137])),
    st.tuples(st.just("failed"), st.just("gone"), st.just(None)),
    st.tuples(st.just("signal"), st.just(2), st.just(None)),
    st.tuples(st.just("tick"), st.just(0), st.just(None)),
)


def happen(monitor, kind, first, second, now):
    if kind == "up":
        return monitor.rank_up(first, second, now)
    if kind == "ended":
        return monitor.rank_ended(first, second, now)
    if kind == "failed":
        return monitor.failed(first, now)
    return monitor.interrupted(first, now) if kind == "signal" else monitor.tick(now)


@given(events=st.lists(EVENTS, max_size=30), code=st.sampled_from([0, 1, -9]))
def test_whatever_happens_ranks_begin_once_in_their_places_and_an_end_is_in_sight(events, code):
    monitor = watching(2, MpiHost("a"), MpiHost("b"))
    begun, signals, now = [], [], 0.0
    for kind, first, second in events:
        now += 1.0
        if kind == "tick" and monitor.deadline is not None:
            now = max(now, monitor.deadline)
        instructions = happen(monitor, kind, first, second, now)
        begun += [one for one in instructions if isinstance(one, Begin)]
        signals += [one.number for one in instructions if isinstance(one, Send)]
    assert begun in ([], [Begin("a", 1), Begin("b", 1)], [Begin("b", 1), Begin("a", 1)])
    assert signals[:1] in ([], [signal.SIGTERM])
    assert set(signals[1:]) <= {signal.SIGKILL}
    if signals:
        # what was asked to end is killed, and then given up
        for _ in range(3):
            if monitor.deadline is not None:
                monitor.tick(monitor.deadline)
        assert monitor.is_given_up
    if not begun and code == 0 and not signals:
        assert monitor.ended(code).code != 0
