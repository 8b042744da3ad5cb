"""Tests of the core API through the backend: user programs, run as scripts in folders of their own."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fiber.abc import Backend
from fiber.testing.kit.platform import Facts, Platform

_APPS = Path(__file__).parent.with_name("apps.py")


class Master:
    """Running program of :mod:`fiber.testing.apps`.

    Args:
        app: its name.
        words: its arguments.
        environ: its environment.
        patience: timeout in seconds of any one wait.
    """

    def __init__(self, app: str, *words: str, environ: Mapping[str, str], patience: float) -> None:
        # not below pytest's folder, but in one that other users cannot enter
        self._folder = tempfile.mkdtemp(prefix="fiber-kit-")
        script = shutil.copy(_APPS, self._folder)
        self.app = app
        self._patience = patience
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, script, app, *words],
            cwd=self._folder,
            # run folders of its own, so that what a kill leaves is removed with the folder
            env={**environ, "XDG_RUNTIME_DIR": self._folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self._lines),
                (self.process.stderr, self._errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    def wait_for_fact(self, key: str) -> Any:
        """Wait until the program has printed a fact of that name, and return it."""
        found: list[Any] = []

        def is_there() -> bool:
            found[:] = [facts[key] for facts in self.facts() if key in facts]
            return bool(found) or not any(reader.is_alive() for reader in self._readers)

        deadline = time.monotonic() + self._patience
        with self._changed:
            # the end of its output notifies no waiter, so check now and then
            while not is_there() and time.monotonic() < deadline:
                self._changed.wait(0.1)
        assert found, f"{self.app} did not print {key!r}: {self._transcript()}"
        return found[0]

    def facts(self) -> list[dict[str, Any]]:
        """Return all facts printed so far, without the output of its jobs."""
        found = []
        for line in list(self._lines):
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                found.append(facts)
        return found

    def end(self) -> list[dict[str, Any]]:
        """Wait until it has ended with 0; returns its facts."""
        code = self._wait()
        assert code == 0, f"{self.app} ended with {code}: {self._transcript()}"
        return self.facts()

    def killed(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal and wait for its end."""
        self.process.send_signal(number)
        self._wait()

    def close(self) -> None:
        """End it, and remove its folder."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join(self._patience)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> int:
        try:
            code = self.process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            msg = f"{self.app} did not end within {self._patience:g} s: {self._transcript()}"
            raise AssertionError(msg) from None
        for reader in self._readers:
            # jobs that outlive it may hold its output open
            reader.join(2.0)
        return code

    def _transcript(self) -> str:
        return "\n".join(["", *self._lines[-20:], *self._errors[-60:]])

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()


def environment(backend: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a master that uses a backend with these settings."""
    ours = {key: value for key, value in os.environ.items() if key != "FIBER_BACKEND"}
    return {**ours, "PYTHONFAULTHANDLER": "1", "FIBER_BACKEND": backend, **settings}


class Programs(Platform):
    """Fixture that runs user programs; the plugin must be installed, since they choose it by name."""

    #: timeout in seconds of a program of the kit, which starts several jobs
    program_patience: float = 120.0

    @pytest.fixture
    def program(
        self, backend: Backend, settings: Mapping[str, str], facts: Facts
    ) -> Iterator[Callable[..., Master]]:
        """Function that starts a program of :mod:`fiber.testing.apps`, which ends with the test."""
        facts["name"] = backend.name
        facts["capabilities"] = self.declared(backend).names()
        started: list[Master] = []

        def start(app: str, *words: str) -> Master:
            environ = environment(backend.name, settings)
            master = Master(app, *words, environ=environ, patience=self.program_patience)
            started.append(master)
            return master

        yield start
        for master in started:
            master.close()


class CoreApi(Programs):
    """Tests of the core API."""

    level = 3

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("app", ["processes", "pools", "queues", "primitives", "managers"])
    def test_a_program_works(self, program: Callable[..., Master], app: str) -> None:
        program(app).end()

    @pytest.mark.timeout(300)
    def test_a_program_leaves_nothing(
        self, program: Callable[..., Master], request: pytest.FixtureRequest
    ) -> None:
        sees = self.require_witness(request.getfixturevalue("witness"), "left")
        master = program("pools")
        run_id = master.wait_for_fact("run")

        master.end()

        assert self.wait_until(lambda: not sees.left(run_id)), sees.left(run_id)
