"""Pods without containers: they do what a script says, at once, so that tests need no engine."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import attrs

from .objects import Object


class StartRefused(Exception):  # noqa: N818 - an answer, no failure
    """A container cannot be started."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        #: as ``state.waiting.reason`` says it; StartError is its end
        self.reason, self.message = reason, message


@attrs.frozen
class Ended:
    """How a container ended."""

    code: int
    oom: bool = False
    #: termination message
    message: str = ""


@attrs.frozen(kw_only=True)
class LogQuery:
    """Which part of a log is wanted."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False


@attrs.frozen
class Mount:
    """A folder or file of the host, in a container."""

    source: str
    target: str
    read_only: bool = False


@attrs.frozen(kw_only=True)
class Act:
    """What a hollow container does."""

    #: its exit code; None: it runs until somebody ends it
    code: int | None = None
    #: what it writes when it starts
    log: str = ""
    #: its exit code when asked to end; None: it does not hear, and is killed after its grace
    on_term: int | None = 143
    #: it ends as one whose memory was not enough
    oom: bool = False
    #: what it leaves as its termination message
    message: str = ""
    #: it cannot be started: the reason and message that it waits with; StartError is its end
    refused: tuple[str, str] | None = None


@attrs.define
class Hollow:
    """A runtime that runs nothing."""

    script: Callable[[Object], Act] = lambda _: Act()
    #: whether volumes are files
    real: bool = False
    addresses: tuple[str, ...] = ()
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(2))

    async def open(self, folder: Path) -> None:
        pass

    async def close(self) -> None:
        pass

    async def prepare(self, pod: Object) -> str:
        number = next(self._numbers)
        return f"10.244.{number // 250}.{number % 250}"

    async def start(
        self, pod: Object, container: Object, environ: Mapping[str, str], mounts: Sequence[Mount]
    ) -> Emptiness:
        act = self.script(pod)
        if act.refused is not None:
            raise StartRefused(*act.refused)
        return Emptiness(act, str(container["image"]))

    async def discard(self, pod: Object) -> None:
        pass


class Emptiness:
    """A container that is none."""

    def __init__(self, act: Act, image: str) -> None:
        self.image = image
        self.image_id = "sha256:" + "0" * 64
        self._act = act
        self._lines: list[tuple[float, bytes]] = []
        self._news = asyncio.Event()
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.write(act.log)
        if act.oom:
            self.end(Ended(137, oom=True))
        elif act.code is not None:
            self.end(Ended(act.code, message=act.message))

    def write(self, text: str) -> None:
        """It writes to its log."""
        lines = text.encode().splitlines(keepends=True)
        self._lines += [(time.time(), line) for line in lines]
        self._wake()

    def end(self, ended: Ended) -> None:
        """It ends so, unless it has ended already."""
        if not self._ended.done():
            self._ended.set_result(ended)
            self._wake()

    async def wait(self) -> Ended:
        return await asyncio.shield(self._ended)

    async def stop(self, grace: float) -> None:
        if self._act.on_term is not None:
            self.end(Ended(self._act.on_term, message=self._act.message))
            return
        await asyncio.wait({self._ended}, timeout=grace)
        self.end(Ended(137))

    async def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        """The lines that are wanted."""
        lines, start = self._lines, 0
        if query.since is not None:
            start = next((n for n, (at, _) in enumerate(lines) if at >= query.since), len(lines))
        if query.tail is not None:
            start = max(start, len(lines) - query.tail)
        while True:
            news = self._news
            for at, line in lines[start:]:
                start += 1
                yield f"{_stamp(at)} ".encode() + line if query.timestamps else line
            if not query.follow or self._ended.done():
                return
            await news.wait()

    async def exec(self, argv: Sequence[str], *, has_input: bool) -> asyncio.subprocess.Process:
        """A process of this host that writes its arguments, and its input, back."""
        program = "printf '%s\\n' \"$*\"" + ("; exec cat" if has_input else "")
        return await start_process(["/bin/sh", "-c", program, "sh", *argv], has_input=has_input)

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of this host."""
        return await asyncio.open_connection("127.0.0.1", port)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


async def start_process(
    argv: Sequence[str],
    *,
    has_input: bool,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """A process whose streams are pipes; its input is empty unless it has one."""
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    stdin = pipe if has_input else nothing
    return await asyncio.create_subprocess_exec(
        *argv, stdin=stdin, stdout=pipe, stderr=pipe, env=env, pass_fds=pass_fds
    )


def _stamp(seconds: float) -> str:
    """A time as logs have it."""
    whole, part = divmod(int(seconds * 1e9), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:09d}Z"
