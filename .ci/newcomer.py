#!/usr/bin/env python3
"""The first minutes of somebody new, on a bare Debian: README's commands, its program, and mistakes.

``python .ci/newcomer.py``, as root: makes a root folder with Debian's Python, pip and git and nothing
else, clones this checkout there, and does in it what README says, as root and as an ordinary user. What
is printed is shown; a step that does not do what it should ends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "python3-pip", "git", "ca-certificates")
USER = 1000
#: where it stands inside
PROGRAM = "newcomer.py"
#: tests of README's second command: what the walk is about is whether it installs, runs and tells
TESTS = ("fiber_core/tests/test_queues.py", "plugins/fiber_local/tests/test_backend.py")
#: seconds that a step may take
PATIENCE = 600
#: most lines of an error that somebody has made
FEW = 25
WAITING = """
import time
import fiber as mp

if __name__ == "__main__":
    with mp.Pool(2) as pool:
        waiting = pool.map_async(time.sleep, [600] * 4)
        print("begun", flush=True)
        waiting.get()
"""


def main(arguments: Sequence[str]) -> int:
    """Make the root folder and walk through it twice; the exit code."""
    if arguments:
        walk(Path(arguments[0]))
        return 0
    from debian_root import ROOT, DebianRoot, MissingError

    debian = DebianRoot(SUITE, PACKAGES)
    try:
        debian.make()
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    for number in (0, USER):
        home = debian.path / "home" / str(number)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        subprocess.run(["git", "clone", "--quiet", ROOT, home / "clone"], check=True)
        shutil.copy(__file__, home / PROGRAM)
        subprocess.run(["chown", "--recursive", f"{number}:{number}", home], check=True)
        print(f"\n##### as {'root' if number == 0 else 'an ordinary user'}", flush=True)
        become = ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups")
        inside = f"/home/{number}"
        words = (*become, "env", f"HOME={inside}", "python3", f"{inside}/{PROGRAM}", inside)
        if code := debian.call(*words, folder=inside):
            return code
    return 0


# -- inside


def walk(home: Path) -> None:
    """Do what README says, and what it does not."""
    clone = home / "clone"
    python = clone / ".venv" / "bin" / "python"
    os.environ["PATH"] = f"{python.parent}:{os.environ['PATH']}"

    said = step(["python3", "bootstrap.py", "train"], clone)
    expect("sha256" in said and "Traceback" not in said, "the policy is trained")
    said = step(["python3", "bootstrap.py", "test", *TESTS], clone)
    expect(re.search(r"\d+ passed", said) is not None, "the tests have passed")

    readme = (clone / "README.md").read_text(encoding="utf-8")
    first = home / "first.py"
    first.write_text(readme.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    said = step(["python3", first], home)
    expect(said == f"{[number**2 for number in range(10)]}\n", "the first program does as it says")
    step(["fiber", "doctor"], home)

    said = step(["python3", first], home, code=1, FIBER_BACKEND="locla")
    expect("did you mean 'local'?" in said and is_short(said), "a slip of the pen is told")
    interrupted(home)


def interrupted(home: Path) -> None:
    """Ctrl-C while a map's tasks run: all are sent, so that only the wait is in the traceback."""
    program = home / "waiting.py"
    program.write_text(WAITING, encoding="utf-8")
    print(f"\n$ python3 {program.name}, and Ctrl-C", flush=True)
    # as in a shell: the keys reach a group of processes, and they are not ignored, which they are in
    # what a script has started in the background
    running = subprocess.Popen(
        ["python3", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads
    )
    try:
        assert running.stdout is not None
        begun = running.stdout.readline()
        expect(begun == "begun\n", "it has begun")
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    print(said, flush=True)
    expect(running.returncode == -signal.SIGINT, f"it has ended by it, not {running.returncode}")
    expect(said.count("Traceback") == 1 and is_short(said), "one traceback, and a short one")


def step(command: Sequence[str | Path], folder: Path, *, code: int = 0, **environ: str) -> str:
    """Run a command and show what it prints; its output, of both kinds."""
    print(
        f"\n$ {' '.join(f'{name}={value}' for name, value in environ.items())}"
        f" {' '.join(str(word) for word in command)}",
        flush=True,
    )
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        text=True,
        check=False,
    )
    print(done.stdout, f"[{time.monotonic() - began:.1f} s]", flush=True)
    expect(done.returncode == code, f"it ends with {code}, not {done.returncode}")
    return done.stdout


def is_short(said: str) -> bool:
    """Whether an error is one that somebody reads."""
    return len(said.splitlines()) <= FEW


def expect(holds: bool, what: str) -> None:
    """End the walk where something is not as it should be."""
    if not holds:
        sys.exit(f"newcomer: this does not hold: {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
