"""Runs: of this user on this host, and those whose programs are in jobs on other hosts.

:func:`find_runs` finds the former. :class:`RemoteRuns` finds the jobs and asks them as ``fiber exec``
reaches them, :class:`JobAsker` is the connection to one: a ``fiber exec`` of its own, with ``fiber top
--answer`` at the other end, for which :func:`answer_requests` works. A request is an empty line, and its
answer a line of JSON; :class:`JobConnection` has lines that one run is asked by its status socket. Whoever
asks can change nothing, and a job that is not asked any more for a while ends what answers. ``fiber gc`` removes
what ended runs left.
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
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber._agent import rundir
from fiber._agent.job import MODULE
from fiber._base.threads import Deadline, SerialExecutor
from fiber.backend_parts.liveness import Liveness, liveness_of, owner_of
from fiber.cli.jobs import job_meant, list_jobs
from fiber.cli.options import BackendCommand, backend_option, loaded_plugins
from fiber.cli.output import note
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
            return job_meant(loaded, word).run_id
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


class _JobCommand:
    """A command in a job, which answers each line with a line; for one thread but for :meth:`close`.

    Args:
        words: the command, with its way there.
        environ: its environment here.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the command
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environ
        )

    def ask(self, request: bytes, begins: bytes, timeout: float | None = None) -> bytes:
        """Return the next line with that beginning; a shell there may print what it likes.

        Raises:
            OSError: the command has ended, with its last words; or takes too long.
            ValueError: it was closed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = Deadline(timeout)
        # one that has ended says why
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
        while True:
            line, is_whole, rest = self._rest.partition(b"\n")
            if is_whole:
                self._rest = rest
                if line.startswith(begins):
                    return line
            elif not select.select([self._process.stdout], [], [], deadline.left)[0]:
                msg = "it takes too long"
                raise TimeoutError(msg)
            elif data := os.read(self._process.stdout.fileno(), 2**20):
                self._rest += data
            else:
                raise ConnectionError(self._last_words())

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else f"the command there ended with {code}"

    def end(self) -> None:
        """End it, so that :meth:`ask` returns; on any thread; idempotent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        """End it, and release what is left; idempotent."""
        assert self._process.stdout is not None
        self.end()
        self._process.stdout.close()
        self._errors.close()


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
        self._command = _JobCommand(words, environ)
        self._executor = SerialExecutor("fiber-top-job")

    def ask(self) -> None:
        """Ask once more, unless an answer is due; does not wait."""
        if not self.failure and self._answered.is_set():
            self._answered.clear()
            self._executor.submit(self._ask)

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
        self._command.end()
        self._executor.close()
        self._command.close()

    def _ask(self) -> None:
        """On the executor's thread, since the platform may take its time."""
        try:
            # an answer of Fiber's is a list
            self._take(self._command.ask(b"", b"["))
        except (OSError, ValueError) as error:
            self.failure, self.answers = str(error), ()
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
        except (ValueError, TypeError, KeyError, RecursionError):
            self.failure = _UNREADABLE
            return
        meant = self.run if self.run in outer.values() else ""
        self.answers = tuple(one for one in found if outer[one.id] == meant)
        self.has_answered = True


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
        self._command = _JobCommand(words, environ)
        #: ends the command
        self.close = self._command.close

    def ask(self, what: str, **facts: object) -> dict[str, Any]:
        """Return what its program answers; see ``fiber._watch.status.Asker``.

        Raises:
            FiberError: there is no answer.
        """
        request = json.dumps({"run": self._run, "ask": what, **facts}).encode()
        try:
            answer: dict[str, Any] = json.loads(self._command.ask(request, b"{", self._timeout))
        except (OSError, ValueError) as error:
            msg = f"the job that tells of run {self._run} does not answer: {error}"
            raise FiberError(msg) from error
        if "error" in answer:
            raise FiberError(answer["error"])
        return answer


def runs_elsewhere(
    run: str, backend: str | None, command: str, timing: Timing
) -> tuple[str, RemoteRuns]:
    """The run that a user means, and the runs of jobs elsewhere: all of a backend's if one was named.

    Raises:
        FiberError: no program can be run beside the jobs of that backend, or several jobs may be meant.
    """
    session = None if backend is None else Session.load(backend)
    if session is not None and not session.info.capabilities.same_host:
        session.require("exec", f"{command} --backend")
    return run_meant(run, backend), RemoteRuns(loaded_plugins(), session, timing)


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


@click.command("gc", cls=BackendCommand, short_help="Remove what ended runs left.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@backend_option
@click.pass_context
def gc(ctx: click.Context, dry_run: bool, backend: str | None) -> None:
    """Remove runs whose program has died, and detached runs whose jobs have all ended.

    That is their logs, their folders on this host, and whatever else they left on their backend.
    Runs that began on this host are looked at, of all backends or of the one that is named; and
    on the backend in use, where it can tell, those that began elsewhere.
    """
    plugins = loaded_plugins()
    only = None if backend is None else plugins.find_backend(backend).name
    failed, printed = False, set[str]()
    for folder, description in rundir.runs():
        name = str(description.get("backend", ""))
        if only not in {None, name}:
            continue
        try:
            why = _collect(plugins, name, folder, description, dry_run=dry_run)
        except FiberError as error:
            # the others can still be collected
            note(f"run {folder.name} is kept: {error}")
            failed = True
            continue
        if why:
            printed.add(folder.name)
            _print(folder.name, why, dry_run=dry_run)
    _sweep(backend, printed, dry_run=dry_run)
    ctx.exit(1 if failed else 0)


def _sweep(backend: str | None, printed: AbstractSet[str], *, dry_run: bool) -> None:
    with Session.load(backend).open_backend() as loaded:
        for run_id in loaded.sweep(dry_run=dry_run):
            if run_id not in printed:
                _print(run_id, "whoever began it is gone", dry_run=dry_run)


def _print(run_id: str, why: str, *, dry_run: bool) -> None:
    click.echo(f"{'Would remove' if dry_run else 'Removed'} run: {run_id} ({why})")


def _collect(
    plugins: Plugins, backend: str, folder: Path, description: dict[str, Any], *, dry_run: bool
) -> str:
    """Remove a run if it is over; returns the reason, "" where it is not over."""
    program = liveness_of(folder)
    if program is Liveness.ALIVE:
        # it may be about to submit the job of a detached run
        return ""
    if program is Liveness.UNKNOWN:
        owner = owner_of(folder)
        process = "" if owner is None else f", process {owner.pid} of {owner.host},"
        note(
            f"run {folder.name} is kept: nothing seen from here proves that its "
            f"program{process} has ended; run fiber gc where it ran, or remove {folder}"
        )
        return ""
    settings = dict(description.get("settings") or {})
    origin = f"of this run, which process {description.get('pid')} began"
    session = Session.load(backend, plugins=plugins, settings=settings, origin=origin)
    with session.open_backend() as loaded:
        if description.get("detached"):
            jobs = list_jobs(loaded, folder.name)
            if not all(item.status.state.is_terminal for item in jobs):
                return ""
            why = "its jobs have ended"
        else:
            why = f"its program, process {description.get('pid')}, has died"
        if not dry_run:
            loaded.cleanup(folder.name)
            rundir.remove(folder)
    return why
