"""Tiny programs for jobs in tests: an argv each, and entries for backends that fork.

``python -m fiber.testing.programs ENTRY INDEX`` calls an entry in a fresh Python, as the fake backend
does instead of a fork. The others need only Python's standard library, print ``ready`` on a line of its own where tests wait for
them, and end by themselves after ten minutes.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Mapping

from fiber._base.entry_points import load_object

Argv = tuple[str, ...]

_LIFETIME = 600
_READY = f"""
signal.alarm({_LIFETIME})
print("ready", flush=True)
"""
_WAIT = f"""{_READY}
while True:
    signal.pause()
"""


def _python(code: str, *words: str) -> Argv:
    # isolated and without site: starts in a third of the time, and no user file can interfere
    return (sys.executable, "-I", "-S", "-c", code.strip() + "\n", *words)


def exit_with(code: int) -> Argv:
    """End with an exit code."""
    return _python("import sys; sys.exit(int(sys.argv[1]))", str(code))


def die_by(signum: int) -> Argv:
    """End by a signal, leaving no core file."""
    code = """
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.kill(os.getpid(), int(sys.argv[1]))
signal.alarm(10)
signal.pause()
"""
    return _python(code, str(int(signum)))


def sleep_forever() -> Argv:
    """Print ready and wait."""
    return _python("import signal" + _WAIT)


def ignore_sigterm() -> Argv:
    """Print ready and wait; SIGTERM does nothing."""
    return _python("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + _WAIT)


def exit_on_sigterm(code: int) -> Argv:
    """Print ready and wait; end with an exit code at SIGTERM."""
    # not a handler: it would not run for a signal that comes right before the wait
    text = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
{_READY}
signal.sigwait([signal.SIGTERM])
os._exit(int(sys.argv[1]))
"""
    return _python(text, str(code))


def with_child() -> Argv:
    """Start a child that ignores SIGTERM, print its pid and ready, and wait."""
    code = f"""
import os, signal
child = os.fork()
if child == 0:
    signal.alarm({_LIFETIME})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
print(child, flush=True)
"""
    return _python(code + _WAIT)


def stop_itself() -> Argv:
    """Print ready and stop, as by ^Z; end with 0 once continued."""
    code = f"""
import os, signal
signal.alarm({_LIFETIME})
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    return _python(code)


def print_lines(count: int) -> Argv:
    """Print numbered lines, ``line 0`` first."""
    code = "import sys\nfor n in range(int(sys.argv[1])): print('line', n)"
    return _python(code, str(count))


def print_text(out: bytes, err: bytes = b"") -> Argv:
    """Write bytes to stdout and then to stderr."""
    code = """
import os, sys
for fd, text in (1, sys.argv[1]), (2, sys.argv[2]):
    data = bytes.fromhex(text)
    while data:
        data = data[os.write(fd, data):]
"""
    return _python(code, out.hex(), err.hex())


def echo_args(*words: str) -> Argv:
    """Print the arguments as a line of JSON, in ASCII."""
    return _python("import json, sys; print(json.dumps(sys.argv[1:]))", *words)


def expect_args(*words: str) -> Argv:
    """End with 0 where the arguments arrive as they are, else with 1."""
    code = """
import ast, os, sys
sys.exit([os.fsencode(word) for word in sys.argv[2:]] != ast.literal_eval(sys.argv[1]))
"""
    return _python(code, ascii([os.fsencode(word) for word in words]), *words)


def expect_env(values: Mapping[str, str | None]) -> Argv:
    """End with 0 where each variable has its value, or is absent for None, else with 1."""
    code = """
import ast, os, sys
wrong = {k: os.environ.get(k) for k, v in ast.literal_eval(sys.argv[1]).items()
         if os.environ.get(k) != v}
print(wrong)
sys.exit(bool(wrong))
"""
    return _python(code, ascii(dict(values)))


def expect_cwd(path: str) -> Argv:
    """End with 0 where that is the working directory, else with 1."""
    code = "import os, sys; sys.exit(os.getcwd() != os.path.realpath(sys.argv[1]))"
    return _python(code, path)


_PRIVATE = """
import hashlib, os, sys
scheme, _, word = os.environ.get("FIBER_BOOTSTRAP", "").partition(":")
if scheme == "fd":
    stream = open(int(word), "rb")
elif scheme == "stdin":
    stream = sys.stdin.buffer
elif scheme == "file":
    stream = open(word, "rb")
else:
    sys.exit("FIBER_BOOTSTRAP is none of fd:<n>, stdin, stdin:<length> and file:<path>")
with stream:
    data = stream.read(int(word) if scheme == "stdin" and word else -1)
digest = hashlib.sha256(data).hexdigest()
"""


def read_private() -> Argv:
    """Print the SHA-256 of the private bytes."""
    return _python(_PRIVATE + "print(digest)")


def expect_private(private: bytes) -> Argv:
    """End with 0 where the private bytes arrive, with 2 where not, with 3 where argv or environ has them."""
    code = """
if digest != sys.argv[1]:
    sys.exit(2)
for name in "cmdline", "environ":
    path = f"/proc/{os.getpid()}/{name}"
    if os.path.exists(path) and data in open(path, "rb").read():
        sys.exit(3)
"""
    return _python(_PRIVATE + code, hashlib.sha256(private).hexdigest())


def write_file(path: str, text: str) -> Argv:
    """Write a file."""
    return _python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", path, text)


def expect_file(path: str, text: str) -> Argv:
    """End with 0 where a file holds the text, else with 1."""
    return _python("import sys; sys.exit(open(sys.argv[1]).read() != sys.argv[2])", path, text)


def allocate(megabytes: int) -> Argv:
    """Use that much memory, and end with 0 where one could."""
    code = """
import sys
block = bytearray(int(sys.argv[1]) * 2**20)
for place in range(0, len(block), 4096):
    block[place] = 1
"""
    return _python(code, str(megabytes))


def burn(processes: int, seconds: float) -> Argv:
    """Compute in several processes for a time; print the CPUs that were used, on average."""
    code = """
import os, sys, time
processes, seconds = int(sys.argv[1]), float(sys.argv[2])
begin = time.monotonic()
for _ in range(processes):
    if os.fork() == 0:
        while time.monotonic() - begin < seconds:
            pass
        os._exit(0)
for _ in range(processes):
    os.wait()
times = os.times()
used = times.children_user + times.children_system
print(used / (time.monotonic() - begin))
"""
    return _python(code, str(processes), str(seconds))


def echo_streams() -> Argv:
    """Print ready, listen at ``WHERE`` of ``FIBER_REACH=streams:WHERE``, and echo each stream."""
    code = """
import os, signal, socket, threading
kind, _, where = os.environ["FIBER_REACH"].partition(":")
assert kind == "streams", kind
if where.startswith("/"):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(where)
    listener.listen()
elif where.startswith("fd:"):
    listener = socket.socket(fileno=int(where[3:]))
    listener.listen()
else:
    host, _, port = where.rpartition(":")
    listener = socket.create_server((host.strip("[]"), int(port)))
def echo(stream):
    with stream:
        while True:
            data = stream.recv(65536)
            if not data or data == b"end":
                return
            stream.sendall(data)
def accept():
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
"""
    return _python(code + _WAIT)


def exit_code_of(private: bytes, index: int) -> int:
    """Entry that ends with the byte of the private bytes at the process's index."""
    return private[index]


def die_or_wait(private: bytes, index: int) -> int:
    """Entry whose process with the private byte as index kills itself; others wait."""
    if index == private[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.alarm(_LIFETIME)
    while True:
        signal.pause()


def main(entry: str, index: int) -> int:
    """Call ``module:function`` with the private bytes and the index; return its exit code."""
    private = b""
    fd = os.environ.pop("FIBER_BOOTSTRAP", "").removeprefix("fd:")
    if fd:
        with os.fdopen(int(fd), "rb") as stream:
            private = stream.read()
    code: int = load_object(entry)(private, index)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
