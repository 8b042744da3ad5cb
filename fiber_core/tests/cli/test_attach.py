"""An attached job: its output is ours, its end is ours, and our end is its end."""

import os
import signal
import threading

import attrs
import pytest

from fiber._agent import rundir
from fiber.cli.run import exit_code
from fiber.cli.watch import Question
from fiber.exceptions import BackendUnavailableError
from fiber.hookspecs import hookimpl
from fiber.model import JobState, JobStatus, Reason, ReasonKind
from fiber.testing import FakeBackend, FakePlugin, fakes, programs


def failed(code, reason=None):
    return JobStatus(state=JobState.FAILED, exit_code=code, reason=reason)


class TestExitCodes:
    @pytest.mark.parametrize(
        "status,code",
        [
            (JobStatus(state=JobState.SUCCEEDED, exit_code=0), 0),
            (failed(7), 7),
            (failed(-signal.SIGKILL), 137),
            (failed(-signal.SIGTERM), 143),
            (failed(None), 1),
            (failed(None, Reason(ReasonKind.START)), 127),
            (failed(None, Reason(ReasonKind.IMAGE)), 1),
            (failed(127, Reason(ReasonKind.UNSCHEDULABLE)), 1),
            # of several processes the first did well and another did not
            (failed(0), 1),
        ],
    )
    def test_they_are_those_of_shells(self, status, code):
        assert exit_code(status) == code


class TestFollowing:
    def test_output_is_shown_and_the_exit_code_returned(self, fiber, platform):
        done = fiber("run", "-a", "--", "sh", "-c", "echo one; echo two >&2; exit 7")

        assert (done.exit_code, done.stdout) == (7, "one\ntwo\n")
        assert platform.jobs() == []
        assert list(rundir.runs()) == []

    def test_a_signal_is_reported_and_is_128_more(self, fiber):
        done = fiber("run", "-a", *programs.die_by(signal.SIGKILL))

        assert done.exit_code == 137
        assert done.stderr.endswith(": ended by SIGNAL(9)\n")

    def test_a_missing_program_is_127_with_the_systems_message(self, fiber):
        assert "No such file or directory" in fiber.fails("run", "-a", "no-such", code=127)

    def test_output_that_comes_by_itself_is_not_copied(self, fiber, monkeypatch):
        declared = attrs.evolve(fakes.CAPABILITIES, output=True)
        monkeypatch.setattr(fakes, "CAPABILITIES", declared)

        assert fiber.lines("run", "-a", "echo", "hi") == []

    def test_lost_output_is_reported(self, fiber, monkeypatch):
        def logs(*_, **__):
            raise BackendUnavailableError("no answer")

        monkeypatch.setattr(FakeBackend, "logs", logs)

        done = fiber("run", "-a", "true")

        assert done.exit_code == 0
        assert "is incomplete: no answer" in done.stderr

    def test_waiting_is_reported_once_with_the_platforms_message(
        self, fiber, platform, monkeypatch
    ):
        waits = JobStatus(state=JobState.PENDING, message="0/3 nodes are available")
        events = FakeBackend.events

        def preceded(self, run_id):
            stream = events(self, run_id)
            first = next(stream)
            for _ in range(2):
                yield first[0], waits
            yield first
            yield from stream

        monkeypatch.setattr(FakeBackend, "events", preceded)

        told = fiber("run", "-a", "true").stderr

        assert told.count("waits: 0/3 nodes are available") == 1

    def test_other_plugins_are_notified_of_the_jobs_status(self, fiber):
        class Hears:
            @hookimpl
            def fiber_job_changed(self, previous, current):
                heard.append((previous and previous.state, current.state))

        heard = []
        fiber.extra.append(Hears())

        fiber("run", "-a", "true")

        assert heard[0][0] is None
        assert heard[-1][1] is JobState.SUCCEEDED

    def test_a_platform_that_is_lost_ends_the_command(self, fiber, monkeypatch):
        def events(*_):
            raise BackendUnavailableError("the cluster is gone")

        monkeypatch.setattr(FakeBackend, "events", events)

        done = fiber("run", "-a", "true")

        assert done.exit_code == 1
        assert done.stderr.endswith("fiber: the cluster is gone\n")


class Signals:
    """A plugin that signals this process once its job is ready, and notes how the job ended."""

    def __init__(self, platform, *numbers):
        self._platform = platform
        self._numbers = numbers
        self.ended = None

    @hookimpl
    def fiber_job_changed(self, job, current):
        # the command watches the job now; from before that it would end in another way
        if current.state is JobState.RUNNING:
            assert next(self._platform.find(job).lines(None, follow=True)) == "ready"
            for number in self._numbers:
                os.kill(os.getpid(), number)
        elif current.state.is_terminal:
            self.ended = current.exit_code


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_ends_the_job_first(self, fiber, platform, number):
        signals = Signals(platform, number)
        fiber.extra.append(signals)

        done = fiber("run", "-a", *programs.exit_on_sigterm(3))

        assert done.exit_code == 128 + number
        assert done.stdout == "ready\n"
        assert signals.ended == 3
        assert platform.jobs() == []

    def test_a_second_one_kills_it(self, fiber, platform):
        signals = Signals(platform, signal.SIGINT, signal.SIGTERM)
        fiber.extra.append(signals)

        done = fiber("run", "-a", *programs.ignore_sigterm())

        assert done.exit_code == 130
        assert signals.ended == -signal.SIGKILL

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_one_that_comes_before_the_job_is_accepted_leaves_nothing(
        self, fiber, platform, number
    ):
        class Impatient:
            @hookimpl(wrapper=True)
            def fiber_submit_job(self):
                job = yield
                os.kill(os.getpid(), number)
                return job

        fiber.extra.append(Impatient())

        fiber.fails("run", "-a", *programs.sleep_forever(), code=128 + number)

        assert platform.jobs() == []
        assert list(rundir.runs()) == []


class TestAsking:
    """Ctrl-C where a person sits in front of the command."""

    @pytest.fixture
    def asked(self, monkeypatch):
        """Answers to give, one for each question, and the list of questions asked."""
        questions = []

        class Answers(Question):
            def ask(self, text):
                questions.append(text)
                if answers:
                    self._on_answer(answers.pop(0))
                else:
                    self._thread = threading.current_thread()

            def __exit__(self, *_):
                self._thread = None
                super().__exit__(None, None, None)

        answers = []
        monkeypatch.setattr("fiber.cli.run.can_ask", lambda: True)
        monkeypatch.setattr("fiber.cli.run.Question", Answers)
        return answers, questions

    def test_yes_ends_the_job(self, fiber, asked, platform):
        signals = Signals(platform, signal.SIGINT)
        fiber.extra.append(signals)
        asked[0].append("y")

        done = fiber("run", "-a", *programs.exit_on_sigterm(3))

        assert (done.exit_code, signals.ended) == (130, 3)
        assert len(asked[1]) == 1
        assert asked[1][0].startswith("\nfiber: end job ")
        assert asked[1][0].endswith("? [y/N] ")

    @pytest.mark.parametrize("answer", ["n", "", "what"])
    def test_anything_else_lets_it_go_on(self, fiber, asked, platform, answer):
        # the answer is followed by a signal that does not ask
        signals = Signals(platform, signal.SIGINT, signal.SIGTERM)
        fiber.extra.append(signals)
        asked[0].append(answer)

        done = fiber("run", "-a", *programs.exit_on_sigterm(3))

        assert "goes on\n" in done.stderr or signals.ended == 3
        assert done.exit_code == 128 + signal.SIGTERM

    def test_a_detached_job_can_be_left_running(self, fiber, asked, platform, monkeypatch):
        declared = attrs.evolve(fakes.CAPABILITIES, same_host=False)
        monkeypatch.setattr(fakes, "CAPABILITIES", declared)
        fiber.extra.append(Signals(platform, signal.SIGINT))
        asked[0].append("l")

        done = fiber("run", "-a", *programs.sleep_forever())

        (job,) = platform.jobs()
        assert done.exit_code == 130
        assert done.stderr.endswith(f"fiber: job {job.id} goes on: fiber logs -f {job.id}\n")
        assert "l: leave it running" in asked[1][0]
        assert not platform.find(job).status.state.is_terminal
        assert [folder.name for folder, _ in rundir.runs()] == [job.run_id]

    def test_a_job_that_ends_with_us_cannot_be_left(self, fiber, asked, platform):
        fiber.extra.append(Signals(platform, signal.SIGINT, signal.SIGTERM))
        asked[0].append("l")

        fiber("run", "-a", *programs.sleep_forever())

        assert asked[1][0].endswith("? [y/N] ")
        assert platform.jobs() == []

    def test_a_second_ctrl_c_is_a_yes(self, fiber, asked, platform):
        signals = Signals(platform, signal.SIGINT, signal.SIGINT)
        fiber.extra.append(signals)

        done = fiber("run", "-a", *programs.exit_on_sigterm(3))

        assert (done.exit_code, signals.ended, len(asked[1])) == (130, 3, 1)

    def test_a_third_kills_it(self, fiber, asked, platform):
        signals = Signals(platform, signal.SIGINT, signal.SIGINT, signal.SIGINT)
        fiber.extra.append(signals)

        done = fiber("run", "-a", *programs.ignore_sigterm())

        assert (done.exit_code, signals.ended) == (130, -signal.SIGKILL)

    def test_other_signals_do_not_ask(self, fiber, asked, platform):
        signals = Signals(platform, signal.SIGTERM)
        fiber.extra.append(signals)

        done = fiber("run", "-a", *programs.exit_on_sigterm(3))

        assert (done.exit_code, asked[1]) == (143, [])


def test_the_platforms_noun_is_used_for_the_job(fiber, platform, monkeypatch):
    offered = FakePlugin.fiber_backends

    def calling_it_so(self):
        return [attrs.evolve(info, noun="pod") for info in offered(self)]

    monkeypatch.setattr(FakePlugin, "fiber_backends", hookimpl(calling_it_so))

    done = fiber("run", "-a", *programs.die_by(signal.SIGKILL))

    created, ended = done.stderr.splitlines()
    name = created.removeprefix("Created pod: ")
    assert ended.startswith(f"fiber: pod {name}: ended by SIGNAL(9)")
