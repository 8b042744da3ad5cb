"""Functions that a supervisor's forked children run in tests; none needs more than the library."""

import gc
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fiber._agent.rundir import Notes

PATIENCE = 60


class Toys:
    """Provider of devices."""

    kind = "toy"

    def environment(self, devices: Any) -> dict[str, str]:
        """Name the devices."""
        return {"TOYS": ",".join(device.id for device in devices)}


def exit_with(private: bytes, index: int) -> int:
    """End with the exit code of this index."""
    return private[index]


def fail(private: bytes, index: int) -> None:
    """Raise an exception."""
    raise ValueError("what went wrong")


def leave(private: bytes, index: int) -> None:
    """Exit with a text, as ``sys.exit("text")`` does."""
    sys.exit("said at the end")


def note(private: bytes, index: int) -> None:
    """Note something in a folder, and be killed."""
    notes = Notes(Path(private.decode()))
    notes.take()
    notes.page[notes.take()] = 7
    os.kill(os.getpid(), signal.SIGKILL)


def tell(private: bytes, index: int) -> None:
    """Write what was given."""
    sys.stdout.buffer.write(private)


def tell_where(private: bytes, index: int) -> None:
    """Print directory, group, signals and descriptors of this process."""
    print(Path.cwd())
    print(os.getpgrp() == os.getpid())
    print([str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD)])
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    print(sys.stdin.read() == "")


def tell_descriptors(private: bytes, index: int) -> None:
    """Print the open descriptors beyond the standard ones, and what they are."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append((int(link.name), str(link.readlink()).split(":")[0]))
        except FileNotFoundError:
            continue
    print([kind for number, kind in sorted(found) if number > 2])


def tell_environ(private: bytes, index: int) -> None:
    """Print the values of the given variables."""
    for name in private.decode().split():
        print(name, os.environ.get(name))


def collect_and_tell_faults(private: bytes, index: int) -> None:
    """Run the garbage collector, write how many pages this process has taken for its own, and wait."""
    gc.collect()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt, flush=True)
    pause()


def wait(private: bytes, index: int) -> None:
    """Write "ready" and wait."""
    print("ready", flush=True)
    pause()


def count_interrupts(private: bytes, index: int) -> None:
    """Write "ready", then a line at each SIGINT; end with 7 at the last of so many."""
    wanted = int(private)
    heard = 0

    def hear(*_: Any) -> None:
        nonlocal heard
        heard += 1
        os.write(1, b"interrupted\n")
        if heard == wanted:
            os._exit(7)

    signal.signal(signal.SIGINT, hear)
    print("ready", flush=True)
    while True:
        pause()


def wait_for_signal(private: bytes, index: int) -> int:
    """Write "ready", wait for SIGTERM, write that it came and end with 9."""
    signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), os._exit(9)))
    return wait(private, index) or 0


def ignore_signals(private: bytes, index: int) -> None:
    """Write "ready" and wait; SIGTERM does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait(private, index)


def with_grandchild(private: bytes, index: int) -> None:
    """Have a child that ignores SIGTERM, print its id, and wait or end."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pause()
    print(pid, flush=True)
    if private != b"end":
        pause()


def with_stranger(private: bytes, index: int) -> None:
    """Have a child in a session of its own, print its id and end."""
    has_left, leaves = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(leaves)
        pause()
    os.close(leaves)
    # the end of file says that it has left our group, with which it would be ended
    os.read(has_left, 1)
    print(pid, flush=True)


def with_launcher(private: bytes, index: int) -> None:
    """Have a child whose child is in a session of its own, print the ids of both and wait or end."""
    known, tells = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(tells, f"{os.getpid()}\n".encode())
            os.close(tells)
        pause()
    os.close(tells)
    with os.fdopen(known) as file:
        worker = file.readline().strip()
    print(f"{launcher} {worker}", flush=True)
    if private != b"end":
        pause()


def write_plenty(private: bytes, index: int) -> None:
    """Write many numbered lines."""
    for number in range(int(private)):
        print(f"{number:06d}", "x" * 57)


def allocate(private: bytes, index: int) -> None:
    """Use up memory."""
    held = [bytearray(8 << 20) for _ in range(1000)]
    print(len(held))


def submit_another(private: bytes, index: int) -> None:
    """Have the supervisor start a job of this process's own, print its process id, then act.

    The private bytes say what: ``wait`` for ever, ``end`` at once, or ``leave`` before the answer.
    """
    from fiber._agent.supervisor import claim_channel, inherited_channel, messages
    from fiber._agent.supervisor.client import SupervisorClient
    from fiber.model import JobSpec

    inheritance = inherited_channel()
    assert inheritance is not None
    channel = claim_channel(inheritance.run_directory)
    assert channel is not None
    spec = JobSpec(
        run_id="0badcafe",
        name="nested",
        argv=("x",),
        entry="supervised_entries:wait",
        private=b"",
        foreground=private == b"leave",
    )
    environ, cwd = dict(os.environ), str(Path.cwd())
    if private == b"leave":
        request = messages.Submit(number=1, spec=spec, environ=environ, cwd=cwd)
        channel.sendall(messages.encode(request))
        return
    client = SupervisorClient(
        channel, on_status=lambda *_: None, on_notice=print, on_end=print, name="nested"
    )
    reply = client.submit(spec, environ=environ, cwd=cwd, on_accepted=lambda _: None)
    print("nested", *reply.pids, flush=True)
    if private == b"wait":
        pause()


def pause() -> None:
    """Wait, not for ever."""
    signal.alarm(PATIENCE)
    while True:
        # signal.pause() would miss a signal that comes right before it
        time.sleep(0.05)
