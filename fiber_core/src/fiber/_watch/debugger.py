"""``breakpoint()`` in a worker: a prompt of pdb on the terminal of the program that started it.

:class:`DebuggerService` has the terminal, and gives it to one stopped process at a time; the others wait.
:func:`install` has ``breakpoint()`` of a child ask for it, over the connection of calls that each child may
make to its parent. What is asked is JSON: a prompt is a call that is answered with the line typed.

A program has this where its setting ``debugger`` is on; nothing of it is imported otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import pdb  # noqa: T100 - this is what it is for
import select
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import current_process
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from fiber._base.threads import SerialExecutor, drained, wake, wake_pipe
from fiber._wire.frames import Kind, Message
from fiber.exceptions import TransportError

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._wire.endpoint import Peer

log = logging.getLogger("fiber")

#: target of messages to the service; others are counted from 1
TARGET = 2**63
#: frames of these packages have called the program's code
_CALLERS = ("fiber.", "multiprocessing.")


class _Stopped(NamedTuple):
    """A process that has stopped, or one of its threads."""

    peer: Peer
    #: number of its stop
    session: int
    #: the call that is to be answered
    call: int
    #: who it is, where it stops; else what it shows
    text: str


class DebuggerService:
    """Prompts of stopped processes on this program's terminal, one after another.

    All but the first look at a message runs on one thread, which waits for what is typed.

    Args:
        runtime: of the program.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._executor: SerialExecutor | None = None
        self._current: _Stopped | None = None
        self._waiting: deque[_Stopped] = deque()
        self._typed = b""
        self._is_closed = False
        #: readable once somebody may be gone
        self._wake, self._waker = wake_pipe()
        runtime.endpoint.serve(TARGET, self)

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take the call of a stopped process."""
        if message.kind is not Kind.CALL or peer.auth_domain is not None:
            return
        try:
            asked = json.loads(bytes(message.body))
            what, session, text = str(asked["do"]), int(asked["session"]), str(asked["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            peer.send(Kind.ERROR, TARGET, message.id)
            return
        if self._executor is None:
            self._executor = SerialExecutor("fiber-debugger")
        stopped = _Stopped(peer, session, message.id, text)
        action = {"open": self._open, "read": self._read, "close": self._close}.get(what)
        if action is None:
            peer.send(Kind.ERROR, TARGET, message.id)
        else:
            self._executor.submit(lambda: action(stopped))

    def on_peer_lost(self, peer: Peer) -> None:
        """Take the terminal from a process that is gone."""
        if self._executor is not None:
            self._executor.submit(lambda: self._drop(peer))
            wake(self._waker)

    def close(self) -> None:
        """Leave the terminal; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runtime.endpoint.withdraw(TARGET)
        if self._executor is not None:
            wake(self._waker)
            self._executor.close()
        os.close(self._wake)
        os.close(self._waker)

    # -- on its thread

    def _open(self, stopped: _Stopped) -> None:
        why_not = _why_no_terminal()
        if why_not:
            _answer(stopped, refused=why_not)
            return
        self._waiting.append(stopped)
        self._give()

    def _give(self) -> None:
        """Give the terminal to the next one, where it is free."""
        while self._current is None and self._waiting and not self._is_closed:
            found = self._waiting.popleft()
            if not found.peer.alive:
                continue
            self._current, self._typed = found, b""
            # what was typed before the prompt was meant for something else
            with contextlib.suppress(termios.error):
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            more = f"; {len(self._waiting)} more wait" if self._waiting else ""
            self._show(f"\nfiber: {found.text} has stopped{more}\n")
            _answer(found)

    def _read(self, stopped: _Stopped) -> None:
        if not self._has_terminal(stopped):
            _answer(stopped, line="")
            return
        self._show(stopped.text)
        _answer(stopped, line=self._line(stopped.peer).decode("utf-8", "replace"))

    def _close(self, stopped: _Stopped) -> None:
        if self._has_terminal(stopped):
            self._show(stopped.text)
            self._current = None
        _answer(stopped)
        self._give()

    def _drop(self, peer: Peer) -> None:
        self._waiting = deque(one for one in self._waiting if one.peer is not peer)
        if self._current is not None and self._current.peer is peer:
            self._show(f"\nfiber: {self._current.text} has ended at the prompt\n")
            self._current = None
        self._give()

    def _has_terminal(self, stopped: _Stopped) -> bool:
        current = self._current
        return current is not None and current[:2] == stopped[:2]

    def _line(self, peer: Peer) -> bytes:
        """The next line that is typed; empty at the end of the terminal, the program or the process."""
        terminal = sys.stdin.fileno()
        while b"\n" not in self._typed:
            ready = select.select([terminal, self._wake], [], [])[0]
            if self._wake in ready:
                drained(self._wake)
            if self._is_closed or not peer.alive:
                return b""
            if terminal in ready:
                try:
                    typed = os.read(terminal, 4096)
                except OSError as error:
                    # the terminal is gone
                    if error.errno != errno.EIO:
                        raise
                    typed = b""
                if not typed:
                    return b""
                self._typed += typed
        line, newline, self._typed = self._typed.partition(b"\n")
        return line + newline

    def _show(self, text: str) -> None:
        try:
            descriptor = os.open(os.ttyname(sys.stdin.fileno()), os.O_WRONLY | os.O_NOCTTY)
        except OSError as error:
            log.debug("fiber: a prompt is not shown, since its terminal is gone: %s", error)
            return
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as terminal:
            terminal.write(text)


def _answer(stopped: _Stopped, **facts: str) -> None:
    stopped.peer.send(Kind.REPLY, TARGET, stopped.call, [json.dumps(facts).encode()])


def _why_no_terminal() -> str:
    """Why nobody can be asked here; "" where somebody can."""
    try:
        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor):
            return "its standard input is no terminal"
        # one that does not control this process tells nobody of its groups
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                return "it runs in the background of its terminal"
    # there is no standard input, or it was replaced by something without a descriptor
    except (AttributeError, OSError, ValueError) as error:
        return f"its standard input cannot be read: {error}"
    return ""


# -- in a child

_sessions = itertools.count(1)


def install(runtime: Runtime, url: str, task: Callable[[], str]) -> None:
    """Make ``breakpoint()`` of this process open a prompt at the program that started it.

    A variable ``PYTHONBREAKPOINT`` says otherwise, as for any program.

    Args:
        runtime: of this process.
        url: address of its parent.
        task: returns what it runs, for people; "" for nothing.
    """
    if "PYTHONBREAKPOINT" in os.environ:
        return
    # pdb is not made for several threads
    mine = threading.local()

    def hook(*_: Any, **__: Any) -> None:
        if not hasattr(mine, "debugger"):
            mine.debugger = RemotePdb(_Terminal(runtime, url, task))
        mine.debugger.set_trace(sys._getframe(1))  # noqa: SLF001 - as pdb.set_trace() does

    sys.breakpointhook = hook


class _Terminal:
    """The parent's terminal as a file of lines, while it is this thread's."""

    def __init__(self, runtime: Runtime, url: str, task: Callable[[], str]) -> None:
        self._runtime = runtime
        self._url = url
        self._task = task
        self._session = 0
        self._text = ""
        self._has_warned = False
        #: what this is, for the prompt
        self.who = ""

    def acquire(self) -> bool:
        """Wait for the terminal, unless this has it; False where there is none."""
        if self._session:
            return True
        name, host, task = current_process().name, self._runtime.hello.host, self._task()
        self.who = f"{name} on {host}" + (f", {task}" if task else "")
        self._session, self._text = next(_sessions), ""
        try:
            answer = self._ask(
                "open", f"{name} (pid {os.getpid()} on {host}){task and f', {task},'}"
            )
            why_not = answer.get("refused", "")
        except TransportError as error:
            why_not = str(error)
        if why_not:
            self._session = 0
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "fiber: breakpoint() goes on in %s: the program that started it has no prompt (%s)",
                    self.who,
                    why_not,
                )
        return not why_not

    def release(self) -> None:
        """Release the terminal for other processes. Idempotent."""
        if self._session:
            # a program that is gone has no terminal to be left
            with contextlib.suppress(TransportError):
                self._ask("close", self._text)
            self._session, self._text = 0, ""

    def write(self, text: str) -> int:
        """Take text, which is shown with the next prompt."""
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Do nothing: the next prompt shows what there is."""

    def readline(self) -> str:
        """Show what was written and return the line that is typed; empty at the end."""
        text, self._text = self._text, ""
        try:
            return str(self._ask("read", text).get("line", ""))
        except TransportError:
            return ""

    def _ask(self, what: str, text: str) -> dict[str, Any]:
        asked = {"do": what, "session": self._session, "text": text}
        pending = self._runtime.client(self._url).call(TARGET, [json.dumps(asked).encode()])
        pending.wait()
        found: dict[str, Any] = json.loads(bytes(pending.result()))
        return found


class RemotePdb(pdb.Pdb):
    """pdb on the parent's terminal, which it has from a stop until the code goes on freely.

    Args:
        terminal: the terminal.
    """

    def __init__(self, terminal: _Terminal) -> None:
        files: Any = terminal
        super().__init__(stdin=files, stdout=files, nosigint=True)
        self._terminal = terminal

    def interaction(self, *arguments: Any, **named: Any) -> None:
        """Ask the user for a command at a stop."""
        if not self._terminal.acquire():
            self.set_continue()
            return
        self.prompt = f"{self._terminal.who} (Pdb) "
        super().interaction(*arguments, **named)
        # as set_continue() leaves it
        if self.quitting or self.stoplineno == -1:
            self._terminal.release()

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """Stop at the end of a function; at that of the task go on, whatever was asked for."""
        try:
            return super().dispatch_return(frame, arg)
        finally:
            caller = frame.f_back
            name = "fiber." if caller is None else str(caller.f_globals.get("__name__"))
            if name.startswith(_CALLERS) and not self.quitting:
                self.set_continue()
                self._terminal.release()

    def do_quit(self, arg: str) -> bool:
        """Make the task fail with BdbQuit; its worker continues."""
        self._user_requested_quit = True
        self.set_quit()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - pdb's name
        """Like ``q``: the terminal or the program has ended."""
        self.message("")
        return self.do_quit(arg)
