"""An attached job: its output is ours, its end is ours, and our end is its end."""

import os
import queue
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from fiber._agent import rundir
from fiber.cli.output import Interrupted
from fiber.cli.run import exit_code
from fiber.cli.session import Question, Watcher
from fiber.exceptions import BackendUnavailableError
from fiber.hookspecs import hookimpl
from fiber.model import JobState, JobStatus, Reason, ReasonKind
from fiber.testing import FakeBackend, programs


def failed(code, reason=None):
    return JobStatus(state=JobState.FAILED, exit_code=code, reason=reason)


@pytest.mark.parametrize(
    "status, code",
    [
        (JobStatus(state=JobState.SUCCEEDED, exit_code=0), 0),
        (failed(7), 7),
        (failed(-signal.SIGKILL), 137),
        (failed(None), 1),
        (failed(None, Reason(ReasonKind.START)), 127),
        (failed(None, Reason(ReasonKind.IMAGE)), 1),
        (failed(127, Reason(ReasonKind.UNSCHEDULABLE)), 1),
        # of several processes the first did well and another did not
        (failed(0), 1),
    ],
)
def test_exit_codes_are_those_of_shells(status, code):
    assert exit_code(status) == code


class TestFollowing:
    @pytest.mark.parametrize("same_host", [True, False])
    def test_output_is_shown_and_the_exit_code_returned(self, fiber, platform, capable, same_host):
        capable(same_host=same_host)

        done = fiber("run", "-a", "--", "sh", "-c", "echo one; echo two >&2; exit 7")

        assert (done.exit_code, done.stdout) == (7, "one\ntwo\n")
        assert platform.jobs() == []
        assert list(rundir.runs()) == []

    def test_output_that_comes_by_itself_is_not_copied(self, fiber, capable):
        capable(output=True)

        assert fiber.lines("run", "-a", "echo", "hi") == []

    @pytest.mark.parametrize(
        "call, code, told",
        [
            ("logs", 0, "is incomplete: no answer\\x1b[2J"),
            ("events", 1, "fiber: no answer\\x1b[2J\n"),
        ],
        ids=["its output", "all of it"],
    )
    def test_a_platform_that_is_lost_is_reported_and_orders_the_terminal_nothing(
        self, fiber, monkeypatch, call, code, told
    ):
        def lost(*_, **__):
            raise BackendUnavailableError("no answer\x1b[2J")

        monkeypatch.setattr(FakeBackend, call, lost)

        done = fiber("run", "-a", "true")

        assert done.exit_code == code
        assert told in done.stderr

    def test_waiting_is_reported_once_with_the_platforms_message_and_no_order_in_it(
        self, fiber, platform, monkeypatch
    ):
        # the title of the window, and the 8-bit form of the same order
        message = "0/3 nodes\x1b]0;x\x07 are\x9d0;x\x9c available"
        waits = JobStatus(state=JobState.PENDING, message=message)
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

        shown = r"waits: 0/3 nodes\x1b]0;x\x07 are\x9d0;x\x9c available"
        assert told.count(shown) == 1


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


@pytest.fixture
def signalled(fiber, platform):
    """Run a program attached and send these signals once it is ready."""

    def run(argv, *numbers):
        signals = Signals(platform, *numbers)
        fiber.extra.append(signals)
        done = fiber("run", "-a", *argv)
        return done, signals.ended

    return run


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_ends_the_job_first(self, signalled, platform, number):
        done, ended = signalled(programs.exit_on_sigterm(3), number)

        assert (done.exit_code, done.stdout, ended) == (128 + number, "ready\n", 3)
        assert platform.jobs() == []

    def test_a_second_one_kills_it(self, signalled):
        done, ended = signalled(programs.ignore_sigterm(), signal.SIGINT, signal.SIGTERM)

        assert (done.exit_code, ended) == (130, -signal.SIGKILL)

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
        """Answers to give, each with a signal that follows it, and the questions asked."""
        questions = []

        class Answers(Question):
            def ask(self, text):
                questions.append(text)
                self.is_open = not answers
                if self.is_open:
                    return
                answer, number = answers.pop(0)
                self._on_answer(answer)
                if number is not None:
                    os.kill(os.getpid(), number)

        answers = []
        monkeypatch.setattr("fiber.cli.run.can_ask", lambda: True)
        monkeypatch.setattr("fiber.cli.run.Question", Answers)
        return answers, questions

    @pytest.mark.parametrize(
        "answer, signals, code, end",
        [
            (("y", None), 1, 130, 3),
            # no answer yet
            (None, 2, 130, 3),
            (None, 3, 130, -signal.SIGKILL),
            # another signal does not ask
            (("n", signal.SIGTERM), 1, 143, 3),
            (("", signal.SIGTERM), 1, 143, 3),
            # a job that ends with us cannot be left
            (("l", signal.SIGTERM), 1, 143, 3),
        ],
        ids=["yes", "a second Ctrl-C", "a third", "no", "nothing", "leave"],
    )
    def test_the_answer_decides(self, signalled, asked, answer, signals, code, end):
        asked[0].extend([] if answer is None else [answer])
        argv = programs.ignore_sigterm() if end < 0 else programs.exit_on_sigterm(3)

        done, ended = signalled(argv, *[signal.SIGINT] * signals)

        assert (done.exit_code, ended) == (code, end)
        (question,) = asked[1]
        assert question.startswith("\nfiber: end job ")
        assert question.endswith("? [y/N] ")
        assert ("goes on\n" in done.stderr) == (code == 143)

    def test_a_detached_job_can_be_left_running(self, signalled, asked, platform, capable):
        capable(same_host=False)
        asked[0].append(("l", None))

        done, _ = signalled(programs.sleep_forever(), signal.SIGINT)

        (job,) = platform.jobs()
        assert done.exit_code == 130
        assert done.stderr.endswith(f"fiber: job {job.id} goes on: fiber logs -f {job.id}\n")
        assert "l: leave it running" in asked[1][0]
        assert not platform.find(job).status.state.is_terminal
        assert [folder.name for folder, _ in rundir.runs()] == [job.run_id]


def soon():
    return time.monotonic() + 30


def test_a_stream_that_ends_is_an_error(backend):
    watcher = Watcher(backend, "00000001")
    backend.close()

    with pytest.raises(BackendUnavailableError, match="events of run 00000001 have ended"):
        watcher.get(until=soon())


@pytest.mark.parametrize("was", [signal.default_int_handler, signal.SIG_IGN])
def test_signals_are_as_before_afterwards_and_one_that_is_ignored_stays_so(backend, was):
    before = signal.signal(signal.SIGINT, was)
    try:
        with Watcher(backend).signals():
            assert (signal.getsignal(signal.SIGINT) == was) == (was is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) == was
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_during_a_submission_is_told_once_that_is_done(backend):
    watcher = Watcher(backend)
    with watcher.signals(grace=30):
        signal.raise_signal(signal.SIGINT)
        watcher.queue_signals()
        assert watcher.get(until=soon()) == signal.SIGINT


@pytest.mark.parametrize(
    "numbers, grace",
    [
        ([signal.SIGINT], 0.01),
        ([signal.SIGINT, signal.SIGINT], 30),
        ([signal.SIGTERM], 30),
    ],
    ids=["Ctrl-C, after a while", "the second", "any other"],
)
def test_a_submission_that_goes_on_is_ended_by(numbers, grace, backend):
    watcher = Watcher(backend)
    with pytest.raises(Interrupted), watcher.signals(grace):
        for number in numbers:
            signal.raise_signal(number)
        watcher.get(until=soon())


@pytest.fixture
def terminal(monkeypatch):
    """The other end of our standard input."""
    theirs, ours = os.openpty()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(fileno=lambda: theirs, isatty=lambda: True))
    yield ours
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def answers():
    return queue.SimpleQueue()


@pytest.mark.parametrize(
    "typed,answer", [(b"y\n", "y"), (b" YES \n", "yes"), (b"\n", ""), (b"\xff\n", "\ufffd")]
)
def test_the_typed_line_is_the_answer_and_it_can_be_asked_again(
    terminal, answers, typed, answer, capsys
):
    with Question(lambda text: answers.put((text, question.is_open))) as question:
        for _ in range(2):
            question.ask("well? ")
            os.write(terminal, typed)
            # whoever hears of it may be interrupted at once, which is another question
            assert answers.get(timeout=30) == (answer, False)

    assert capsys.readouterr().err.startswith("well? ")


def test_an_unanswered_one_ends_with_its_block(terminal, answers, capsys):
    before = threading.active_count()

    with Question(answers.put) as question:
        question.ask("well? ")
        assert question.is_open

    assert threading.active_count() == before
    assert answers.empty()
    assert capsys.readouterr().err == "well? \n"
