"""Pods without containers: they do what a script says, at once, so that tests need no engine."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import attrs

from .logs import LogBook
from .runtime import Ended, LogQuery, Mount, Session, StartRefused
from .store import Object

__all__ = ["Act", "Hollow"]


@attrs.frozen(kw_only=True)
class Act:
    """What a hollow container does."""

    #: its exit code; None: it runs until somebody ends it
    code: int | None = None
    #: seconds until it ends by itself
    after: float = 0.0
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
    #: minutes that the clock of its node is ahead of UTC, as the times in its log show
    zone: int = 0


def _runs(pod: Object) -> Act:
    return Act()


@attrs.define
class Hollow:
    """A runtime that runs nothing."""

    script: Callable[[Object], Act] = _runs
    real: bool = False
    folder: Path = Path(os.devnull)
    addresses: tuple[str, ...] = ()
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(2))

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def prepare(self, pod: Object) -> str:
        number = next(self._numbers)
        return f"10.244.{number // 250}.{number % 250}"

    async def start(
        self,
        pod: Object,
        container: Object,
        environ: Mapping[str, str],
        mounts: Sequence[Mount],
        attempt: int,
    ) -> Emptiness:
        act = self.script(pod)
        if act.refused is not None:
            reason, message = act.refused
            raise StartRefused(reason, message, retried=reason != "StartError")
        return Emptiness(act, str(container["image"]))

    async def discard(self, pod: Object) -> None:
        pass


class Emptiness:
    """A container that is none."""

    def __init__(self, act: Act, image: str) -> None:
        self.container_id = f"containerd://{secrets.token_hex(32)}"
        self.image = image
        self.image_id = "sha256:" + "0" * 64
        self.log = LogBook(zone=act.zone)
        self._act = act
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        if act.log:
            self.log.write(act.log.encode())
        if act.oom:
            self.end(Ended(137, oom=True))
        elif act.code is not None and not act.after:
            self.end(Ended(act.code, message=act.message))
        elif act.code is not None:
            ended = Ended(act.code, message=act.message)
            asyncio.get_running_loop().call_later(act.after, self.end, ended)

    def end(self, ended: Ended) -> None:
        """It ends so, unless it has ended already."""
        if not self._ended.done():
            self._ended.set_result(ended)
            self.log.close()

    async def wait(self) -> Ended:
        return await asyncio.shield(self._ended)

    async def stop(self, grace: float) -> None:
        if self._act.on_term is not None:
            self.end(Ended(self._act.on_term, message=self._act.message))
            return
        done, _ = await asyncio.wait({self._ended}, timeout=grace)
        if not done:
            await self.kill()

    async def kill(self) -> None:
        self.end(Ended(137))

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        return self.log.read(query)

    async def exec(self, argv: Sequence[str], *, stdin: bool, tty: bool) -> Session:
        """A process that writes its arguments, and its input, back."""
        return _Echo(" ".join(argv).encode() + b"\n", stdin=stdin)

    async def attach(self, *, stdin: bool) -> Session:
        return _Echo(b"", stdin=stdin)

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        message = f"nothing listens on port {port} of a hollow pod"
        raise ConnectionRefusedError(message)


class _Echo:
    """Says a line, then what it is told."""

    def __init__(self, line: bytes, *, stdin: bool) -> None:
        self._words: asyncio.Queue[bytes | None] = asyncio.Queue()
        if line:
            self._words.put_nowait(line)
        if not stdin:
            self._words.put_nowait(None)

    async def read(self) -> tuple[int, bytes] | None:
        data = await self._words.get()
        return None if data is None else (1, data)

    async def write(self, data: bytes) -> None:
        self._words.put_nowait(data)

    async def end_input(self) -> None:
        self._words.put_nowait(None)

    async def code(self) -> int:
        return 0

    async def resize(self, width: int, height: int) -> None:
        pass

    async def close(self) -> None:
        self._words.put_nowait(None)
