"""Parts of a supervisor: event loop, descriptors, channels, system calls, orphans.

What they do for jobs is shown by the tests of real supervisors; here is what those cannot show.
"""

import errno
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from fiber._agent import supervisor
from fiber._agent.supervisor import kernel, messages, orphans
from fiber._agent.supervisor.child import spawn
from fiber._agent.supervisor.messages import Channel, Decoder, encode
from fiber._wire.descriptors import Descriptors
from supervised import exit_code_of, is_alive

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and has subreapers")
PING = messages.Ping()


class TestLoop:
    def test_a_callback_may_forget_others_of_the_same_turn(self, loop, owned):
        readers, seen = [], []

        def read(number):
            seen.append(number)
            for reader in readers:
                loop.forget(reader)

        for number in range(2):
            reader, writer = owned.pipe()
            readers.append(reader)
            loop.on_readable(reader, lambda number=number: read(number))
            os.write(writer, b"x")

        loop.run_once()

        assert len(seen) == 1
        # one that nobody watches any more is no error
        loop.forget(readers[0])

    def test_timers_run_in_the_order_of_their_time_unless_they_are_cancelled(self, loop, clock):
        seen = []
        loop.call_later(2.0, lambda: seen.append("late"))
        loop.call_later(1.0, lambda: seen.append("early"))
        timer = loop.call_later(1.0, lambda: seen.append("never"))
        loop.call_later(1.0, lambda: seen.append("second"))
        timer.cancel()
        timer.cancel()
        clock.time = 5.0

        loop.run_once()

        assert seen == ["early", "second", "late"]


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class TestDescriptors:
    def test_all_that_are_owned_are_closed_once_and_no_others(self, owned):
        pairs = [owned.pipe() for _ in range(3)]
        kept = owned.release(owned.own(os.open(os.devnull, os.O_RDONLY)))
        closed, writer = pairs[0]
        owned.close(closed)
        # somebody else has that number now
        stranger = os.dup2(writer, closed)

        owned.close(closed)
        owned.close_all()

        assert not any(is_open(number) for pair in pairs for number in pair if number != closed)
        assert is_open(stranger)
        assert is_open(kept)
        assert len(owned) == 0
        os.close(stranger)
        os.close(kept)

    def test_one_that_is_closed_already_harms_nothing(self, owned):
        reader, writer = owned.pipe()
        os.close(reader)

        owned.close_all()

        assert not is_open(writer)


class World:
    """A channel, and its other end."""

    def __init__(self, loop, owned):
        self.loop = loop
        self.received, self.ends = [], []
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.descriptor = ours.detach()
        self.channel = Channel(
            owned.own(self.descriptor),
            owner=None,
            loop=loop,
            descriptors=owned,
            on_message=lambda _, message: self.received.append(message),
            on_end=lambda _, reason: self.ends.append(reason),
        )


@pytest.fixture
def world(ticking, owned):
    world = World(ticking, owned)
    yield world
    world.peer.close()
    world.channel.close()


class TestChannel:
    def test_a_peer_that_does_not_read_gets_everything_later(self, world):
        notice = messages.Notice(words="x" * 1000)
        for _ in range(2000):
            world.channel.send(notice)
        # and nobody waits for it longer than this
        world.channel.flush(0.01)
        assert not world.channel.is_idle

        decoder, found = Decoder(), 0
        while found < 2000:
            decoder.feed(world.peer.recv(65536))
            found += sum(1 for _ in decoder.messages())
            world.loop.run_once()

        assert found == 2000
        assert world.channel.is_idle

    def test_the_end_of_the_peer_is_reported_once(self, world):
        world.peer.close()
        world.loop.run_once()
        world.channel.send(PING)
        world.channel.close()

        assert world.ends == [""]

    def test_nonsense_ends_the_channel_with_a_reason_and_what_came_before_it_counts(self, world):
        world.peer.sendall(encode(PING) + b"\xff" * 10)

        world.loop.run_once()

        assert world.received == [PING]
        (reason,) = world.ends
        assert "announces" in reason
        assert not is_open(world.descriptor)

    def test_idle_reads_what_has_just_come(self, world):
        world.peer.sendall(encode(PING))
        assert world.channel.is_idle
        assert world.received == [PING]

        world.peer.sendall(encode(PING)[:5])
        assert not world.channel.is_idle

    def test_a_callback_may_close_the_channel(self, world):
        world.channel._on_message = lambda channel, message: (
            world.received.append(message),
            channel.close(),
        )
        world.peer.sendall(encode(PING) * 3)

        world.loop.run_once()

        assert world.received == [PING]


class TestKernel:
    def test_a_process_that_is_not_there_cannot_be_watched(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

        with pytest.raises(ProcessLookupError):
            kernel.ProcessWatch(pid)

    def test_a_parent_that_is_gone_already_is_noticed(self):
        assert exit_code_of(lambda: 0 if kernel.die_with_parent(1 << 22) else 3) == 3

    @linux
    @pytest.mark.parametrize("refused", ["fork", "pipe"])
    def test_what_cannot_be_forked_leaves_no_descriptor(self, refused, monkeypatch):
        def opened():
            return sorted(int(link.name) for link in Path("/proc/self/fd").iterdir())

        def refuse():
            raise OSError(errno.EAGAIN, "no room for it")

        before = opened()
        owned = Descriptors()
        monkeypatch.setattr(os, refused, refuse)
        with pytest.raises(OSError, match="no room for it"):
            spawn(lambda **_: None, owned, channel=True)

        assert len(owned) == 0
        assert opened() == before
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


class TestInherited:
    """A forked process's channel belongs to it alone, and to one client at a time."""

    @pytest.fixture
    def inheritance(self, monkeypatch):
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(supervisor, "_inheritance", None)
        monkeypatch.setattr(supervisor, "_claimed", False)
        made = supervisor.Inheritance(
            channel=ours, run_directory="/run", supervisor=1, job_id="a", index=0, pid=os.getpid()
        )
        supervisor.inherit(made)
        yield made
        ours.close()
        theirs.close()

    def test_one_client_of_its_own_run_has_it_at_a_time(self, inheritance):
        assert supervisor.inherited_channel() is inheritance
        assert supervisor.claim_channel("/another") is None
        first = supervisor.claim_channel("/run")
        assert first is not None
        assert supervisor.claim_channel("/run") is None

        first.close()
        supervisor.release_channel()

        second = supervisor.claim_channel("/run")
        assert second is not None
        second.close()

    def test_a_fork_of_the_process_has_no_part_in_it(self, inheritance):
        assert exit_code_of(lambda: supervisor.inherited_channel() is not None) == 0


def leave_orphan(act):
    """In a process that adopts orphans, leave one that has acted, then end them.

    Returns:
        what the orphan wrote: its number, and what else ``act`` wrote to its argument.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os.close(reader)
        kernel.adopt_orphans()
        ready, acted = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os.setsid()
                os.write(writer, f"{os.getpid()}\n".encode())
                act(writer)
                os.close(acted)
                signal.alarm(30)
                while True:
                    signal.pause()
            os._exit(0)
        os.waitpid(middle, 0)
        os.close(acted)
        os.read(ready, 1)
        orphans.end_descendants(timeout=20)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text.split("\n")


class TestOrphans:
    """Processes that left their job's group end with the supervisor, save detached supervisors."""

    @linux
    def test_a_supervisor_within_a_job_is_asked_and_not_killed(self):
        def act(writer):
            kernel.set_title(orphans.SUPERVISOR_TITLE)
            signal.signal(signal.SIGTERM, lambda *_: (os.write(writer, b"asked"), os._exit(0)))

        assert leave_orphan(act)[1] == "asked"

    @linux
    def test_a_supervisor_of_detached_jobs_lives_on(self):
        def act(writer):
            os.close(writer)
            kernel.set_title(orphans.DETACHED_TITLE)

        pid = int(leave_orphan(act)[0])

        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)

    @linux
    def test_any_other_is_killed_with_its_children(self):
        def act(writer):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                os.setsid()

        # it returns once nobody holds the pipe
        assert leave_orphan(act)[1:] == [""]

    def test_nothing_is_done_where_there_are_none(self):
        assert exit_code_of(lambda: orphans.end_descendants(timeout=20) or 0) == 0

    def test_titles_fit_what_systems_show(self):
        assert len(orphans.SUPERVISOR_TITLE) <= 15
        assert len(orphans.DETACHED_TITLE) <= 15
