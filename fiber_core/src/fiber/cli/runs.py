"""Runs: of this user on this host, and those whose programs are in jobs on other hosts.

:func:`find_runs` finds the former. :class:`RemoteRuns` finds the jobs and asks them as ``fiber exec``
reaches them, :class:`JobAsker` is the connection to one: a ``fiber exec`` of its own, with ``fiber top
--answer`` at the other end, for which :func:`answer_requests` works. A request is an empty line, and its
answer a line of JSON; :class:`JobConnection` has lines that one run is asked by its status socket. Whoever
asks can change nothing, and a job that is not asked any more for a while ends what answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from fiber._agent import rundir
from fiber._agent.job.config import MODULE
from fiber._base.threads import SerialExecutor
from fiber.backend_parts.liveness import Liveness, liveness_of
from fiber.cli.jobs import find_job, list_jobs
from fiber.cli.options import loaded_plugins
from fiber.cli.session import Session
from fiber.exceptions import BackendError, FiberError
from fiber.model import JobState, Timing

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins
    from fiber._watch.status import Asker
    from fiber.model import Job


@attrs.frozen
class LocalRun:
    """A run whose folder is on this host, and whose program is not known to be dead."""

    #: eight hexadecimal digits
    id: str
    #: its folder
    folder: Path
    #: what its ``run.json`` says
    description: dict[str, Any]

    @property
    def outer(self) -> str:
        """The run whose job its program is in; "" where that is none."""
        return str(self.description.get("outer", ""))


def is_meant(word: str, run: str, outer: str) -> bool:
    """True where the id of a run, or of the run whose job it is in, begins with a word."""
    return run.startswith(word) or bool(outer and outer.startswith(word))


def detached_runs() -> list[LocalRun]:
    """Return the runs that a command began here, and whose jobs go on without it."""
    return [
        LocalRun(folder.name, folder, description)
        for folder, description in rundir.runs()
        if description.get("detached")
    ]


def find_runs(word: str = "") -> list[LocalRun]:
    """Return the runs whose id begins with a word, oldest first.

    Raises:
        FiberError: there is none, where a word was given.
    """
    found = [
        LocalRun(folder.name, folder, description)
        for folder, description in rundir.runs()
        if folder.name.startswith(word) and liveness_of(folder) is not Liveness.DEAD
    ]
    if word and not found:
        msg = f"no run of yours on this host is {word!r}; 'fiber top --once' lists those there are"
        raise FiberError(msg)
    return found


def run_meant(word: str, backend: str | None) -> str:
    """Return the word by which a run is found that somebody means: the run of a job that the word names, or itself.

    Args:
        word: an id, or the beginning of one; or one of a job, or a job's name.
        backend: name of the job's backend; None for the one that is used by default.

    Raises:
        FiberError: several jobs may be meant.
    """
    if not word or any(folder.name.startswith(word) for folder, _ in rundir.runs()):
        return word
    try:
        with Session.load(backend).open_backend() as loaded:
            return find_job(loaded.list(), word).run_id
    except BackendError:
        # then it is told that there is no such run
        return word


# -- elsewhere

#: most jobs that are asked
_MOST = 32
_UNREADABLE = "its answer cannot be read; is its fiber another version?"


@attrs.frozen
class Answer:
    """Answer of a job about one of the runs on its host."""

    #: eight hexadecimal digits
    id: str
    #: the run that the job belongs to
    outer: str
    #: what its ``run.json`` says, and the job that told it
    description: dict[str, Any]
    #: as :class:`fiber.watching.RunStatus` has it; None where its program does not answer
    status: dict[str, Any] | None
    #: when it came, on the monotonic clock
    when: float


class JobAsker:
    """A command in a job, which tells of the runs there.

    Args:
        run: the run that the job belongs to.
        job: id of the job.
        words: the command, with its way there.
        environ: its environment here.
    """

    def __init__(
        self, run: str, job: str, words: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        #: the run that the job belongs to
        self.run = run
        #: id of the job
        self.job = job
        #: the command, with its way there, and its environment here
        self.words, self.environ = words, environ
        #: what came last
        self.answers: tuple[Answer, ...] = ()
        #: True once something came
        self.has_answered = False
        #: why nothing comes any more; "" while something may
        self.failure = ""
        self._answered = threading.Event()
        self._answered.set()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the command
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environ
        )
        self._thread = threading.Thread(target=self._read, name="fiber-top-job", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask once more, unless an answer is due; does not wait."""
        if self.failure or not self._answered.is_set():
            return
        self._answered.clear()
        assert self._process.stdin is not None
        # one that has ended says why, on its thread
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def wait(self, deadline: float) -> None:
        """Wait until it has answered, or cannot, or until a moment on the monotonic clock."""
        if not self._answered.wait(max(0.0, deadline - time.monotonic())) and not self.failure:
            self.failure = "it has not answered in time"

    @property
    def trouble(self) -> str:
        """Why it tells of no run; "" where it does."""
        if self.failure:
            return f"job {self.job} does not answer: {self.failure}"
        if self.answers:
            return ""
        if self.has_answered:
            return f"job {self.job} has started no process with fiber yet"
        return f"job {self.job} is asked"

    def close(self) -> None:
        """End the command; idempotent."""
        _end(self._process)
        self._thread.join()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._take(line)
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self.failure = said[-1] if said else f"the command there ended with {code}"
        self.answers = ()
        self._answered.set()

    def _take(self, line: bytes) -> None:
        now = time.monotonic()
        try:
            found = tuple(
                Answer(
                    str(one["run"]),
                    self.run,
                    {**one, "job": self.job},
                    one["status"],
                    now,
                )
                for one in json.loads(line)
            )
            # other programs of this user may be on its host; one that was started by hand names no run
            outer = {one.id: str(one.description.get("outer") or "") for one in found}
            meant = self.run if self.run in outer.values() else ""
            self.answers = tuple(one for one in found if outer[one.id] == meant)
        except (ValueError, TypeError, KeyError, RecursionError):
            # a shell there may print what it likes; an answer of Fiber's is a list
            if line.startswith(b"["):
                self.failure = _UNREADABLE
                self._answered.set()
            return
        self.has_answered = True
        self._answered.set()


def _end(command: subprocess.Popen[bytes]) -> None:
    """End a command that is given requests, and wait for it; idempotent."""
    assert command.stdin is not None
    with contextlib.suppress(OSError):
        command.stdin.close()
    command.terminate()
    command.wait()


class JobConnection:
    """Connection to the program of a run, by a command in a job on its host.

    Args:
        run: the run.
        words: the command, with its way there.
        environ: its environment here.
        timeout: seconds for which an answer may take.
    """

    def __init__(
        self, run: str, words: Sequence[str], environ: Mapping[str, str], timeout: float
    ) -> None:
        self._run = run
        self._timeout = timeout
        self._rest = b""
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )

    def ask(self, what: str, **facts: object) -> dict[str, Any]:
        """Return what its program answers; see ``fiber._watch.status.Asker``.

        Raises:
            FiberError: there is no answer.
        """
        assert self._process.stdin is not None
        try:
            request = {"run": self._run, "ask": what, **facts}
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = self._next()
        except (OSError, ValueError) as error:
            msg = f"the job that tells of run {self._run} does not answer: {error}"
            raise FiberError(msg) from error
        if "error" in answer:
            raise FiberError(answer["error"])
        return answer

    def close(self) -> None:
        """End the command."""
        assert self._process.stdout is not None
        _end(self._process)
        self._process.stdout.close()

    def _next(self) -> dict[str, Any]:
        """The next line that is an answer; a shell there may print what it likes."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._timeout
        while True:
            line, is_whole, rest = self._rest.partition(b"\n")
            if is_whole:
                self._rest = rest
                if line.startswith(b"{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
                continue
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                msg = "it takes too long"
                raise TimeoutError(msg)
            data = os.read(self._process.stdout.fileno(), 2**20)
            if not data:
                msg = "its command there has ended"
                raise ConnectionError(msg)
            self._rest += data


def runs_elsewhere(run: str, backend: str | None, command: str) -> tuple[str, RemoteRuns]:
    """The run that a user means, and the runs of jobs elsewhere: all of a backend's if one was named.

    Raises:
        FiberError: no program can be run beside the jobs of that backend, or several jobs may be meant.
    """
    session = None if backend is None else Session.load(backend)
    if session is not None and not session.info.capabilities.same_host:
        session.require("exec", f"{command} --backend")
    return run_meant(run, backend), RemoteRuns(loaded_plugins(), session, Timing())


class RemoteRuns:
    """The runs that this user's jobs tell of.

    Args:
        plugins: the plugins that are installed.
        session: of a backend whose jobs are all asked, from wherever they were started; None to ask
            those of the runs of this host alone.
        timing: how long things may take.
    """

    def __init__(self, plugins: Plugins, session: Session | None, timing: Timing) -> None:
        self._plugins = plugins
        self._session = session
        self._timing = timing
        self._askers: dict[str, JobAsker] = {}
        self._failures: dict[str, str] = {}
        self._searcher = SerialExecutor("fiber-top-search")
        self._searched = 0.0
        self._is_searching = threading.Event()
        self._is_closed = False

    def look(self, silent: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask all jobs that are known, and now and then look for more; does not wait.

        Args:
            silent: runs of this host that no program here answers for, with their descriptions.
        """
        now = time.monotonic()
        due = not self._searched or now - self._searched >= self._timing.job_search
        if due and not self._is_searching.is_set() and (silent or self._session is not None):
            self._searched = now
            self._drop_failed()
            self._is_searching.set()
            self._searcher.submit(lambda: self._search(silent))
        for asker in list(self._askers.values()):
            asker.ask()

    def wait(self) -> None:
        """Wait until all jobs were found and have answered, for as long as a program may take."""
        self._searcher.drain(self._timing.job_answer)
        deadline = time.monotonic() + self._timing.job_answer
        for asker in list(self._askers.values()):
            asker.ask()
        for asker in list(self._askers.values()):
            asker.wait(deadline)

    def answers(self) -> Iterator[Answer]:
        """Latest answers of the jobs."""
        for asker in list(self._askers.values()):
            yield from asker.answers

    def connect(self, answer: Answer) -> JobConnection:
        """Make a connection to the program of a run.

        Raises:
            FiberError: the job that told of it is not asked any more.
        """
        asker = self._askers.get(str(answer.description.get("job")))
        if asker is None:
            msg = f"nobody tells of run {answer.id} any more"
            raise FiberError(msg)
        return JobConnection(answer.id, asker.words, asker.environ, self._timing.job_answer)

    @property
    def is_pending(self) -> bool:
        """True while more may be told."""
        return self._is_searching.is_set() or any(
            not asker.has_answered and not asker.failure for asker in list(self._askers.values())
        )

    def troubles(self) -> dict[str, str]:
        """Why nobody answers for a run that has a job, or whose jobs cannot be found; "" where one does."""
        found = dict(self._failures)
        found.update({asker.run: asker.trouble for asker in list(self._askers.values())})
        return found

    def close(self) -> None:
        """End what was started."""
        self._is_closed = True
        # a platform that is out of reach keeps nobody
        self._searcher.end()
        for asker in self._askers.values():
            asker.close()

    def _drop_failed(self) -> None:
        # what was out of reach may be there again
        for ident, asker in list(self._askers.items()):
            if asker.failure:
                self._askers.pop(ident).close()

    # -- on the searcher's thread

    def _search(self, silent: Mapping[str, Mapping[str, Any]]) -> None:
        # many runs of one platform are listed at once
        groups: dict[str, list[str]] = {}
        for run, description in silent.items():
            key = json.dumps([description.get("backend"), description.get("settings")])
            groups.setdefault(key, []).append(run)
        failures = {}
        try:
            for runs in groups.values():
                try:
                    self._find(self._session_of(silent[runs[0]]), runs)
                except FiberError as error:
                    failures.update(dict.fromkeys(runs, str(error)))
            if self._session is not None:
                self._find(self._session, None)
        finally:
            self._failures = failures
            self._is_searching.clear()

    def _session_of(self, description: Mapping[str, Any]) -> Session:
        return Session.load(
            str(description.get("backend")),
            plugins=self._plugins,
            settings=dict(description.get("settings") or {}),
            origin=f"of this run, which process {description.get('pid')} began",
        )

    def _find(self, session: Session, runs: Sequence[str] | None) -> None:
        """Begin to ask the programs among the jobs of some runs; None for all."""
        if session.info.capabilities.same_host:
            # its program would answer here
            return
        session.require("exec", "fiber top of a run elsewhere")
        with session.open_backend() as loaded:
            found = list_jobs(loaded, runs[0] if runs is not None and len(runs) == 1 else None)
        for item in found:
            job = item.job
            is_meant = runs is None or job.run_id in runs
            is_program = item.status.state is JobState.RUNNING and MODULE not in job.argv
            is_new = job.id not in self._askers and len(self._askers) < _MOST
            if is_meant and is_program and is_new:
                self._begin(session, job)

    def _begin(self, session: Session, job: Job) -> None:
        if not self._is_closed:
            asker = JobAsker(job.run_id, job.id, _command(session, job), _environ(session))
            self._askers[job.id] = asker
            asker.ask()


def _command(session: Session, job: Job) -> list[str]:
    # the program's interpreter has fiber; a command named fiber may be any
    first = job.argv[0] if job.argv else ""
    python = first if Path(first).name.startswith("python") else "python3"
    fiber = ("-m", "fiber.cli.main")
    to_job = (sys.executable, *fiber, "exec", "-i", "--backend", session.info.name, job.id, "--")
    return [*to_job, python, *fiber, "top", "--answer"]


def _environ(session: Session) -> dict[str, str]:
    config = session.config
    # this host's own as well, which a job would not be given
    settings = {f"FIBER_{key}".upper(): text for key, text in config.backend_settings().items()}
    return {**os.environ, **config.to_environ(), **settings}


def answer_requests(look: Callable[[], Iterable[dict[str, Any]]], timeout: float) -> None:
    """Answer requests on standard input, until that ends or nobody asks for a while.

    Args:
        look: returns what there is, for an empty line.
        timeout: seconds for which nobody may ask: not every way to a job tells of its end.
    """
    rest = b""
    with contextlib.closing(_Relay()) as relay:
        while select.select([sys.stdin], [], [], timeout)[0]:
            asked = os.read(sys.stdin.fileno(), 4096)
            if not asked:
                return
            *lines, rest = (rest + asked).split(b"\n")
            if not all(lines):
                # many that were not read yet are one
                print(json.dumps(list(look()), default=str), flush=True)
            for line in filter(None, lines):
                print(json.dumps(relay.ask(line), default=str), flush=True)


class _Relay:
    """Passes requests on to the status sockets of the runs here."""

    def __init__(self) -> None:
        self._askers: dict[str, Asker] = {}

    def ask(self, line: bytes) -> dict[str, Any]:
        """Return the answer to a request, or the error."""
        from fiber._watch.status import Asker

        run = ""
        try:
            request = json.loads(line)
            run, what = str(request.pop("run")), str(request.pop("ask"))
            if run not in self._askers:
                (found,) = find_runs(run)
                self._askers[run] = Asker(found.folder, Timing().connect)
            return self._askers[run].ask(what, **request)
        except FiberError as error:
            asker = self._askers.pop(run, None)
            if asker is not None:
                asker.close()
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"error": 'a request is a line such as {"run": RUN, "ask": "status"}'}

    def close(self) -> None:
        """Close the connections."""
        for asker in self._askers.values():
            asker.close()
