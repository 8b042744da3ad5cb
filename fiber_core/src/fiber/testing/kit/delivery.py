"""What reaches a job: arguments, environment, directory and private bytes, unchanged and unseen."""

# ruff: noqa: D102  a test's name is its sentence

from __future__ import annotations

import logging
import pickle
import secrets

import pytest

from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["Delivery"]

_HARD = (
    "",
    " ",
    "two words",
    "it's",
    'say "no"',
    "a\\b\\\\",
    "$HOME `id` $(id) ${x} %PATH% !1",
    "*.py ? [a] {a,b} ~",
    "; & | < > # ( )",
    "line one\nline two\n",
    "tab\there",
    "--option=value",
    "ünïcödé ☃ 🐍",
    "{python} {0} %s",
)


class Delivery(Platform):
    """Tests of what a job is given."""

    def test_arguments_arrive_as_they_are(self, kit: Driver) -> None:
        assert kit.run(programs.expect_args(*_HARD)).exit_code == 0

    def test_many_long_arguments_arrive(self, kit: Driver) -> None:
        assert kit.run(programs.expect_args(*["x" * 1000] * 20)).exit_code == 0

    def test_the_environment_arrives_as_it_is(self, kit: Driver) -> None:
        values = {f"KIT_{number}": text for number, text in enumerate(_HARD)}

        assert kit.run(programs.expect_env(values), env=values).exit_code == 0

    def test_names_are_removed_from_an_inherited_environment(
        self, kit: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KIT_INHERITED", "x")

        status = kit.run(
            programs.expect_env({"KIT_INHERITED": None}), unset_env=frozenset({"KIT_INHERITED"})
        )

        assert status.exit_code == 0

    def test_local_jobs_inherit_the_environment(
        self, kit: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.need(kit.backend, "same_host")
        monkeypatch.setenv("KIT_INHERITED", "x")

        assert kit.run(programs.expect_env({"KIT_INHERITED": "x"})).exit_code == 0

    def test_a_job_runs_in_the_directory_that_was_named(self, kit: Driver) -> None:
        # a folder that every system and every image has
        assert kit.run(programs.expect_cwd("/usr"), cwd="/usr").exit_code == 0

    @pytest.mark.parametrize("size", [16, 200_000])
    def test_private_bytes_arrive_and_are_seen_by_nobody_else(
        self, kit: Driver, caplog: pytest.LogCaptureFixture, size: int
    ) -> None:
        secret = secrets.token_hex(size // 2).encode()
        with caplog.at_level(logging.DEBUG):
            spec = kit.spec(programs.expect_private(secret), private=secret)
            job = kit.backend.submit(spec)
            status = kit.end(job)

        assert status.exit_code == 0, "2: they did not arrive; 3: argv or environment has them"
        text = secret.decode()
        assert text not in caplog.text
        for value in (job, spec, status, kit.backend, kit.said(job)):
            assert text not in repr(value)
        assert secret not in pickle.dumps(job)

    def test_private_bytes_may_be_any_bytes(self, kit: Driver) -> None:
        private = bytes(range(256)) * 4

        assert kit.run(programs.expect_private(private), private=private).exit_code == 0

    def test_empty_private_bytes_are_not_the_same_as_none(self, kit: Driver) -> None:
        assert kit.run(programs.read_private(), private=b"").exit_code == 0
        assert kit.run(programs.expect_env({"FIBER_BOOTSTRAP": None})).exit_code == 0
