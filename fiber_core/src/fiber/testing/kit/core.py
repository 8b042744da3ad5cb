"""The core API through the backend: programs of users, run as users run them."""

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
    """Runs programs of users; the plugin must be installed, as they choose it by its name."""

    #: seconds for one program of the kit, which starts several jobs
    program_patience: float = 120.0

    @pytest.fixture
    def program(
        self, backend: Backend, settings: Mapping[str, str], facts: Facts
    ) -> Iterator[Callable[..., Master]]:
        """Starts a program of :mod:`fiber.testing.apps`; what is left of it ends with the test."""
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
    """Tests of what users do."""

    level = 3

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("app", ["processes", "pools", "queues", "primitives", "managers"])
    def test_a_program_works(self, program: Callable[..., Master], app: str) -> None:
        program(app).end()

    @pytest.mark.timeout(300)
    def test_a_program_leaves_nothing(
        self, program: Callable[..., Master], request: pytest.FixtureRequest
    ) -> None:
        sees = self.asking(request.getfixturevalue("witness"), "left")
        master = program("pools")
        run_id = master.said("run")

        master.end()

        assert self.wait_until(lambda: not sees.left(run_id)), sees.left(run_id)
