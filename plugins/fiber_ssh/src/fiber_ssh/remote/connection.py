"""One program that talks to an agent: what it is told, and output that it follows."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from fiber._agent.supervisor.channel import Channel
from fiber._agent.supervisor.descriptors import Descriptors
from fiber._base.threads import Loop
from fiber_ssh.remote.runs import Job, LogReader, offset_of_tail
from fiber_ssh.remote.wire import Data, Message, decoder, pack

#: output that is on its way to a program that has not said that it took it
_WINDOW = 512 * 1024
_ENOUGH = 256 * 1024


class Follower:
    """Reads one job's output for one program.

    Args:
        number: what the program calls it.
        job: whose output.
        offset: where to begin.
        tail: only the last so many lines of those there are.
        follow: go on until the job has ended.
    """

    def __init__(
        self, number: int, job: Job, *, offset: int, tail: int | None, follow: bool
    ) -> None:
        self.number = number
        self.job = job
        self.follow = follow
        #: bytes that may be sent
        self.credit = _WINDOW
        self._skip = 0
        if tail is not None and os.path.exists(job.log_path):
            offset, self._skip = offset_of_tail(job.log_path, tail)
        self._reader: LogReader | None = None
        self._offset = offset

    def next(self) -> tuple[int, bytes, int] | None:
        """Stream, bytes and the offset behind them; None where there is nothing yet."""
        if self._reader is None:
            if not os.path.exists(self.job.log_path):
                return None
            self._reader = LogReader(self.job.log_path, self._offset)
        found = self._reader.read()
        if found is None:
            return None
        stream, data = found
        data, self._skip = data[self._skip :], 0
        return stream, data, self._reader.offset

    @property
    def is_over(self) -> bool:
        """True where nothing more will come, once :meth:`next` has nothing."""
        return not self.follow or self.job.has_ended

    def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Connection(Channel):
    """The agent's end of a connection.

    Args:
        sock: it; its descriptor is owned by ``descriptors``.
        loop: where it is watched while it is open.
        descriptors: those of the agent.
        hear: called with each message.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Loop,
        descriptors: Descriptors,
        hear: Callable[[Connection, Message], None],
    ) -> None:
        #: the run whose owner it is, if it is one's
        self.owns: str | None = None
        #: runs of which it wants to know
        self.watches: set[str] = set()
        self.followers: dict[int, Follower] = {}
        self._is_pumping = False

        def on_message(_: Channel, message: Message | Data) -> None:
            # output goes the other way only
            if isinstance(message, dict):
                hear(self, message)

        # whoever is answered so was accepted by an agent that goes on
        sock.send(b"+")
        super().__init__(
            descriptors.own(sock.detach()),
            owner=None,
            loop=loop,
            descriptors=descriptors,
            on_message=on_message,
            on_room=self.pump,
            encode=pack,
            decoder=decoder(),
        )

    def follow(self, follower: Follower) -> None:
        """Begin to send output."""
        self.unfollow(follower.number)
        self.followers[follower.number] = follower
        self.pump()

    def unfollow(self, number: int) -> None:
        """Send no more of it."""
        follower = self.followers.pop(number, None)
        if follower is not None:
            follower.close()

    def took(self, number: int, count: int) -> None:
        """The program took so many bytes of output."""
        if number in self.followers:
            self.followers[number].credit += count
            self.pump()

    def pump(self) -> None:
        """Send as much output as there is room for; whoever sends calls back where there is more."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            for follower in list(self.followers.values()):
                self._pump(follower)
        finally:
            self._is_pumping = False

    def _pump(self, follower: Follower) -> None:
        while self.is_open and self.waiting < _ENOUGH and follower.credit > 0:
            # asked before the look: what was written until then is seen by it
            over = follower.is_over
            found = follower.next()
            if found is None:
                if over:
                    self.unfollow(follower.number)
                    self.send({"end": follower.number})
                break
            stream, data, offset = found
            follower.credit -= len(data)
            self.send(Data(follower.number, stream, data, offset))

    def close(self) -> None:
        """Close it. Idempotent."""
        super().close()
        for number in list(self.followers):
            self.unfollow(number)
