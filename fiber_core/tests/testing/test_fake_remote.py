"""The conformance kit passes on the remote fake, which has leases and streams of its own."""

import pytest

from distributions import Site
from fake_witness import FakeWitness
from fiber.testing import BackendConformance
from fiber.testing.fake_remote import (
    AWAY,
    REMOTE_CAPABILITIES,
    FakeRemoteBackend,
    FarConfig,
    RemotePlatform,
)
from fiber.testing.kit.delivery import Streams


class FarWitness(FakeWitness):
    """One that has the platform cease to answer by a file, in every process."""

    def __init__(self, platform, away):
        super().__init__(platform)
        self._away = away

    def go_away(self):
        self._away.touch()

    def come_back(self):
        self._away.unlink()


class TestFar(BackendConformance):
    capabilities = REMOTE_CAPABILITIES
    notices_stops = True
    many = 12

    @pytest.fixture
    def config(self, tmp_path):
        (tmp_path / "home").mkdir()
        return FarConfig(folder=tmp_path / "home")

    @pytest.fixture
    def platform(self, config):
        return RemotePlatform(config)

    @pytest.fixture
    def reopen(self, platform):
        return lambda context: FakeRemoteBackend(context, platform)

    @pytest.fixture
    def backend(self, context, reopen):
        backend = reopen(context)
        yield backend
        backend.close()

    @pytest.fixture
    def witness(self, config, platform):
        return FarWitness(platform, config.folder / AWAY)

    @pytest.fixture
    def unreachable(self, backend, witness, platform):
        witness.go_away()
        # it looks for the file when it is next asked
        platform.available = False
        yield backend
        witness.come_back()

    @pytest.fixture
    def settings(self, config, tmp_path):
        site = Site(tmp_path / "site")
        site.add("fiber-far", entry_points={"far": "fiber.testing.fake_remote"})
        return {
            "FIBER_FAR_FOLDER": str(config.folder),
            "FIBER_FAR_PATH": str(site.folder),
            "PYTHONPATH": str(site.folder),
            # a dead master is told from a silent one sooner
            "FIBER_LEASE": "6",
        }

    def test_the_kit_puts_the_settings_into_its_contexts(self, context, other, config):
        assert context.config is config
        assert other.backend._context.config is config

    @pytest.mark.timeout(120)
    def test_a_grace_that_is_too_short_for_the_kit_is_told(self, program, settings):
        settings["FIBER_FAR_GRACE"] = "1"

        with pytest.raises(AssertionError, match=r"ended \d.* after SIGTERM .*FIBER_GRACE"):
            program("drained_worker").end()


class TestFarByStreams(Streams):
    """Where jobs cannot dial; more is in the tests of _launch."""

    capabilities = REMOTE_CAPABILITIES

    @pytest.fixture
    def config(self, tmp_path):
        (tmp_path / "home").mkdir()
        return FarConfig(folder=tmp_path / "home", streams=True)

    @pytest.fixture
    def backend(self, context, config):
        backend = FakeRemoteBackend(context, RemotePlatform(config))
        yield backend
        backend.close()
