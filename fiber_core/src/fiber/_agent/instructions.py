"""Private instructions of a job's processes: addresses of the parent and the secrets of the run.

The parent writes them into ``JobSpec.private``; :mod:`fiber._runtime.bootstrap`, which is named
here and not imported, reads them in the new process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping

from fiber._base import values
from fiber._wire.handshake import Credentials, Hello
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, StartError, TransportError
from fiber.model.timing import Timing

#: how a ``JobSpec`` names the first code of a worker
ENTRY = "fiber._runtime.bootstrap:main"
#: the same as an argv, for jobs that are not forked
MODULE = "fiber._runtime.bootstrap"
#: what every worker imports; a supervisor that forks them imports it once
PRELOAD = (
    "fiber._config.settings",
    "fiber._tasks.worker",
    "fiber._runtime.bootstrap",
    "fiber._workers.pool_process",
    "fiber._runtime.runtime",
    "fiber._wire.unix",
    "multiprocessing.spawn",
    # by runpy, when it loads the main module
    "pkgutil",
)
#: exit code of a worker whose descriptors a task has closed or replaced
DESCRIPTORS_LOST = 121


@values.frozen(kw_only=True)
class Instructions:
    """Configuration of a new process: how it reaches its parent and proves that it belongs."""

    #: secrets of the run
    credentials: Credentials
    #: where the parent listens, best first
    urls: tuple[str, ...]
    #: identity of the job within the run
    ident: str
    #: folder of the run on the parent's host
    directory: str
    #: how many processes the job has
    processes: int
    #: largest frame of this run
    max_frame: int
    #: seconds for which a parent that does not answer is dialled again; None: ``Timing.dial``
    dial_timeout: float | None = None
    #: factor of the durations of this run
    time_scale: float = 1.0
    #: True where the job does not see the parent's files
    remote: bool = False
    #: addresses to dial in place of others that this host cannot reach
    forwards: Mapping[str, str] = values.field(factory=dict)
    #: True where the tunnel of the job's supervisor reaches addresses that cannot be dialled
    tunnelled: bool = False
    #: the parent, where :attr:`work` comes with these instructions
    parent: Hello | None = None
    #: what the process is to do, pickled; None: it asks its parent for it
    work: bytes | None = values.field(default=None, repr=False)

    @property
    def timing(self) -> Timing:
        """Durations of this run."""
        return Timing.at(self.time_scale)

    def encode(self) -> bytes:
        """Bytes for ``JobSpec.private``."""
        data = values.asdict(self)
        work = data.pop("work")
        data["credentials"] = self.credentials.to_json()
        data["parent"] = None if self.parent is None else values.asdict(self.parent)
        head = json.dumps(data).encode()
        return head if work is None else head + b"\n" + work

    @classmethod
    def decode(cls, private: bytes) -> Instructions:
        """Read the bytes that :meth:`encode` wrote."""
        # JSON has no line break of its own
        head, line_break, work = private.partition(b"\n")
        data = json.loads(head)
        data["credentials"] = Credentials.from_json(data["credentials"])
        data["urls"] = tuple(data["urls"])
        if data["parent"] is not None:
            data["parent"] = Hello.from_json(data["parent"])
        return cls(**data, work=work if line_break else None)

    def ident_of(self, index: int) -> str:
        """Identity of one process of the job."""
        return self.ident if self.processes == 1 else f"{self.ident}.{index}"


def connect_to_any(urls: Iterable[str], connect: Callable[[str], Link]) -> Link:
    """Connect to the first address that answers.

    Raises:
        HandshakeError: the parent itself refused us.
        TransportError: none answers; the error of the last one.
    """
    failure = TransportError("there is no address to dial")
    for url in urls:
        try:
            return connect(url)
        except TransportError as error:
            if is_refusal(error):
                raise
            failure = error
    raise failure


def is_refusal(error: TransportError) -> bool:
    """True for the parent's own word, which another attempt does not change."""
    return isinstance(error, HandshakeError) and error.proven


def dial(instructions: Instructions, hello: Hello) -> Link:
    """Connect to the parent; its addresses are tried in turn until the instructions' time is over.

    A handshake that does not come to its end is tried again: a parent without a moment of CPU time
    looks like a stranger.

    Raises:
        StartError: none answers; the last error is its cause.
        HandshakeError: it refused us.
    """
    timeout = instructions.dial_timeout
    deadline = time.monotonic() + (instructions.timing.dial if timeout is None else timeout)

    def connect(url: str) -> Link:
        return Link(
            url,
            instructions.credentials,
            hello,
            max_frame=instructions.max_frame,
            timing=instructions.timing,
        )

    while True:
        try:
            return connect_to_any(instructions.urls, connect)
        except TransportError as error:
            is_over = time.monotonic() > deadline
            if is_refusal(error) or (is_over and isinstance(error, HandshakeError)):
                raise
            if is_over:
                msg = f"cannot reach the parent at {', '.join(instructions.urls)}"
                raise StartError(msg) from error
        # no event announces a listener that does not exist yet
        time.sleep(0.05)
