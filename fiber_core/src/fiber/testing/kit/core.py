"""Tests of the core API through the backend: user programs, run as scripts."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from fiber.abc import Backend
from fiber.testing.kit.base import Facts
from fiber.testing.kit.master import Master, environment
from fiber.testing.kit.platform import Platform

__all__ = ["CoreApi", "Programs"]


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
