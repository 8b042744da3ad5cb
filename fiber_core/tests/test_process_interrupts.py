"""Ctrl-C: which processes are interrupted with a program, and how the program ends."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from unittest.mock import Mock

import psutil
import pytest

import fiber
import process_signals
from fiber import process as processes
from making import making
from waiting import until_steady

PATIENCE = 50
#: makes standard input the terminal of the session, then runs a program in place of itself
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
HEAD = f"""
import faulthandler
faulthandler.dump_traceback_later({PATIENCE - 10})
"""
HEAD += """
import os, signal, sys, threading, time
import fiber
from fiber._launch.child import Child
from multiprocessing import util

def sleep(ready):
    ready.release()
    time.sleep(600)

def say_interrupted(ready):
    try:
        sleep(ready)
    except KeyboardInterrupt:
        print("child interrupted", flush=True)

def ignore(ready):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sleep(ready)

def start(count, target, *args):
    ready = fiber.Semaphore(0)
    children = [fiber.Process(target=target, args=(ready, *args)) for _ in range(count)]
    for child in children:
        child.start()
    for _ in range(count):
        ready.acquire()
    return children

def tell_when_joined():
    # that the program waits for a child at its end, each time that it begins to
    def look(main=threading.get_ident()):
        seen = None
        while True:
            frame = sys._current_frames().get(main)
            while frame is not None and frame.f_code is not Child.wait.__code__:
                frame = frame.f_back
            if frame is not None and frame is not seen and util.is_exiting():
                print("joining", flush=True)
                seen = frame
            time.sleep(0.01)

    threading.Thread(target=look, daemon=True).start()
"""
MAIN = """
if __name__ == "__main__":
    main()
"""


class Program:
    """A program that runs in a session of its own, with or without a terminal.

    Args:
        arguments: of the interpreter.
        way: how it is interrupted: ``terminal``, by its ``group``, or ``alone``.
        folder: where it runs.
    """

    def __init__(self, arguments, way, folder):
        self.way = way
        self.output = ""
        self._deadline = time.monotonic() + PATIENCE
        if way == "terminal":
            self._end, its = pty.openpty()
            arguments = ["-c", ON_TERMINAL, *arguments]
        else:
            self._end, its = os.pipe()
        with contextlib.closing(os.fdopen(its, "wb", 0)):
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=its if way == "terminal" else subprocess.DEVNULL,
                stdout=its,
                stderr=its,
                cwd=folder,
                env={**os.environ, "PYTHON_COLORS": "0", "TERM": "dumb"},
                start_new_session=True,
            )

    def until(self, text):
        """Read until that was written."""
        while text not in self.output:
            assert self._read(), self.output
        self.output = self.output.partition(text)[2]

    def interrupt(self):
        """Press Ctrl-C, once all its processes wait for something.

        A signal that comes while Python gives up its lock just before a call of the system is noted,
        and interrupts nothing until that call returns; so it is with any program that has threads. On
        a busy machine that moment takes milliseconds.
        """
        # found once: to look for them takes so long on a busy machine that one of them wakes each time
        processes = self._processes()
        until_steady(lambda: self._waits(processes), looks=10)
        if self.way == "terminal":
            self.write("\x03")
        elif self.way == "group":
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)

    def write(self, text):
        """Type."""
        os.write(self._end, text.encode())

    def hang_up(self):
        """Close its terminal."""
        os.close(self._end)
        self._end = os.open(os.devnull, os.O_RDONLY)

    def ends(self):
        """Wait for its end; returns its exit code and the rest of its output."""
        while self._read():
            pass
        return self.process.wait(PATIENCE), self.output

    def _processes(self):
        one = psutil.Process(self.process.pid)
        return [one, *one.children(recursive=True)]

    @staticmethod
    def _waits(processes):
        """For each process how often its main thread has waited; None while one runs."""
        waits = []
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() == psutil.STATUS_RUNNING:
                    return None
                waits.append((one.pid, one.num_ctx_switches().voluntary))
        return waits

    def _state(self):
        """Its output, and what it and its processes do that have not ended."""
        lines = [f"{one.pid} of {one.ppid()}: {one.name()}" for one in self._processes()]
        return "\n".join([self.output, *lines])

    def kill(self):
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._end)

    def _read(self):
        left = max(0.0, self._deadline - time.monotonic())
        assert select.select([self._end], [], [], left)[0], self._state()
        # Linux tells the end of a terminal's last user as an error
        with contextlib.suppress(OSError):
            data = os.read(self._end, 4096)
            self.output += data.decode().replace("\r\n", "\n")
            return bool(data)
        return False


@pytest.fixture
def program(tmp_path):
    """Runs a program."""

    def start(body, way="terminal"):
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(body) + MAIN)
        return Program([script], way, tmp_path)

    with making(start, Program.kill) as program:
        yield program


@pytest.fixture
def interrupted(program):
    """Interrupts a program once it says that it is ready; its exit code and output."""

    def run(body, way="terminal"):
        one = program(body, way)
        one.until("ready\n")
        one.interrupt()
        return one.ends()

    return run


@pytest.mark.parametrize("way", ["terminal", "group", "alone"])
def test_each_child_is_interrupted_once_and_may_take_its_time(interrupted, way, tmp_path):
    # the second interrupt, if there were one, would come before the children are joined
    code, output = interrupted(
        """
        def take_time(ready):
            try:
                sleep(ready)
            except KeyboardInterrupt:
                while not os.path.exists("joining"):
                    time.sleep(0.01)
                print("child has cleaned up", flush=True)

        def main():
            util.Finalize(None, lambda: open("joining", "w").close(), exitpriority=0)
            start(2, take_time)
            print("ready", flush=True)
            time.sleep(600)
        """,
        way,
    )
    assert code == -signal.SIGINT
    assert output.count("child has cleaned up") == 2
    assert output.splitlines().count("KeyboardInterrupt") == 1
    assert ("fiber: interrupted: SIGINT is passed on to" in output) == (way == "alone")


@pytest.mark.parametrize("waits", ["time.sleep(600)", "children[0].join()"])
def test_a_program_that_catches_it_joins_children_that_were_interrupted_too(interrupted, waits):
    code, output = interrupted(
        f"""
        def main():
            children = start(2, say_interrupted)
            try:
                print("ready", flush=True)
                {waits}
            except KeyboardInterrupt:
                for child in children:
                    child.join()
            print("exit codes", [child.exitcode for child in children])
        """
    )
    assert code == 0
    assert output.count("child interrupted") == 2
    assert "exit codes [0, 0]" in output
    assert "Traceback" not in output


def test_a_handler_of_the_programs_own_stays_and_children_of_one_that_ignores_it_do_too(
    interrupted,
):
    code, output = interrupted(
        """
        def report(ready, go_on):
            is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            ready.release()
            go_on.acquire()
            print("ignored:", is_ignored, flush=True)

        def main():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            go_on = fiber.Semaphore(0)
            ignoring = start(1, report, go_on)
            signal.signal(signal.SIGINT, lambda *_: go_on.release())
            children = start(2, say_interrupted)
            print("ready", flush=True)
            for child in [*ignoring, *children]:
                child.join()
            print("stopped", flush=True)
        """
    )
    assert code == 0
    assert "ignored: True\n" in output
    assert output.count("child interrupted") == 2
    assert output.endswith("stopped\n")


def test_a_pool_ends_its_workers_which_say_nothing(interrupted):
    code, output = interrupted(
        """
        def main():
            ready = fiber.Semaphore(0)
            pool = fiber.Pool(2)
            result = pool.map_async(sleep, [ready] * 2)
            for _ in range(2):
                ready.acquire()
            print("ready", flush=True)
            result.get()
        """
    )
    assert code == -signal.SIGINT
    assert output.count("KeyboardInterrupt") == 1


def test_a_program_that_waits_at_its_end_ends_with_its_children(program):
    one = program(
        """
        def main():
            tell_when_joined()
            start(2, say_interrupted)
        """
    )
    one.until("joining\n")
    one.interrupt()
    code, output = one.ends()
    assert code == 0
    assert output.count("child interrupted") == 2
    # they may have ended before it looks
    assert "waiting for ;" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "way, first",
    [("terminal", "while it runs"), ("alone", "while it runs"), ("group", "at its end")],
)
def test_the_second_ends_children_that_ignore_the_first(program, way, first):
    one = program(
        f"""
        def main():
            tell_when_joined()
            start(2, ignore)
            print("ready", flush=True)
            if {first == "while it runs"}:
                time.sleep(600)
        """,
        way,
    )
    one.until("ready\n" if first == "while it runs" else "joining\n")
    one.interrupt()
    one.until("joining\n")
    one.interrupt()
    code, output = one.ends()
    assert code == (-signal.SIGINT if first == "while it runs" else 0)
    assert "fiber: interrupted again: ending Process-" in output
    assert "Traceback" not in output


def test_processes_have_no_terminal_and_outlive_one_with_a_program_that_ignores_its_hangup(
    program, tmp_path
):
    one = program(
        """
        def look(end):
            try:
                os.close(os.open("/dev/tty", os.O_RDWR))
            except OSError:
                end.send(f"no terminal, leads its group: {os.getpgrp() == os.getpid()}")
            end.recv()

        def main():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            here, there = fiber.Pipe()
            child = fiber.Process(target=look, args=(there,))
            child.start()
            found = here.recv()
            print("ready", flush=True)
            try:
                os.read(0, 1)
            except OSError:
                pass  # what a terminal that has hung up answers
            here.send("go on")
            child.join()
            with open("found", "w") as file:
                file.write(f"{found}, exit code {child.exitcode}")
        """
    )
    one.until("ready\n")
    one.hang_up()
    assert one.process.wait(PATIENCE) == 0
    assert (tmp_path / "found").read_text() == "no terminal, leads its group: True, exit code 0"


@pytest.mark.skipif(sys.platform != "linux", reason="others share out CPUs by processes alone")
def test_the_kernel_which_shares_out_cpus_by_sessions_sees_processes_as_one_program_with_theirs(
    program,
):
    one = program(
        """
        def tell(end):
            end.send(os.getsid(0))

        def main():
            here, there = fiber.Pipe()
            process = fiber.Process(target=tell, args=(there,))
            process.start()
            with fiber.Pool(1) as pool:
                own = os.getsid(0)
                print("process:", here.recv() == own, "worker:", pool.apply(os.getsid, (0,)) == own)
        """
    )
    assert one.ends() == (0, "process: True worker: False\n")


@pytest.mark.skipif(sys.platform != "linux", reason="others keep processes in other sessions")
@pytest.mark.parametrize("what", ["program ends", "program is killed", "supervisor is killed"])
def test_nothing_in_the_programs_group_is_hung_up_when_what_reports_interrupts_ends(program, what):
    # the kernel does that where one of the group is stopped, and the last one ends whose parent is in
    # the same session but another group
    one = program(
        """
        def main():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            stopped = os.fork()
            if stopped == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                os._exit(0)
            os.waitid(os.P_PID, stopped, os.WSTOPPED)
            child = fiber.Process(target=int)
            child.start()
            child.join()
            print("ready", flush=True)
            signal.sigwait({signal.SIGUSR1})
            child = fiber.Process(target=print, args=("goes on",))
            child.start()
            child.join()
        """,
        "group",
    )
    one.until("ready\n")
    own = psutil.Process(one.process.pid)
    (stopped,) = (child for child in own.children() if child.status() == psutil.STATUS_STOPPED)
    (supervisor,) = (child for child in own.children() if child != stopped)
    reporter = psutil.Process(process_signals.reporter_of(supervisor.pid))
    if what == "program is killed":
        own.kill()
    else:
        if what == "supervisor is killed":
            supervisor.kill()
            reporter.wait(PATIENCE)
        own.send_signal(signal.SIGUSR1)
    reporter.wait(PATIENCE)
    assert one.process.wait(PATIENCE) == (-signal.SIGKILL if what == "program is killed" else 0)
    assert stopped.status() == psutil.STATUS_STOPPED


@pytest.fixture
def prompt(tmp_path):
    """An interpreter that waits for what is typed."""
    prompt = Program(["-i", "-c", HEAD], "terminal", tmp_path)
    yield prompt
    prompt.kill()


def test_at_a_prompt_children_are_interrupted_and_later_ones_waited_for_at_the_end(prompt):
    prompt.until(">>> ")
    prompt.write("old = start(1, say_interrupted); print('rea' + 'dy'); old[0].join()\n")
    prompt.until("ready\n")
    prompt.interrupt()
    prompt.until(">>> ")
    prompt.write("child = fiber.Process(target=lambda: print('has ' + 'run'))\n")
    prompt.until(">>> ")
    prompt.write("child.start(); exit()\n")
    code, output = prompt.ends()
    assert code == 0
    assert "has run" in output


def test_all_remote_children_are_interrupted_where_a_join_is(monkeypatch, caplog):
    children = [fiber.Process(name="first"), fiber.Process(name="second", daemon=True)]
    for child in children:
        # stands in for one that no terminal reaches
        child._popen = Mock(poll=lambda: None, wait=Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(processes, "active_children", lambda: children)
    with pytest.raises(KeyboardInterrupt):
        children[0].join()
    for child in children:
        child._popen.pass_interrupt_on.assert_called_once_with(again=True)
    assert "fiber: interrupted: SIGINT is passed on to first, second" in caplog.text
