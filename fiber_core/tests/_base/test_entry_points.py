"""Entry points and versions, read from files as by ``importlib.metadata``; backends known by name."""

import importlib.metadata
import sys

import pytest

from fiber._base import entry_points as distributions
from fiber._base.known_backends import known_backends


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    distributions.version.cache_clear()
    yield tmp_path
    distributions.version.cache_clear()


def install(folder, name, version, entry_points="", headers="METADATA"):
    info = folder / f"{name}-{version}.{'dist-info' if headers == 'METADATA' else 'egg-info'}"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n"
    (info / headers).write_text(text)
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def told(points):
    return sorted((p.name, p.value, p.distribution, p.version) for p in points)


def by_stdlib(group):
    found = importlib.metadata.entry_points(group=group)
    return told(map(distributions.EntryPoint.of, found))


class TestEntryPoints:
    def test_those_of_a_group_with_their_distributions(self, site):
        text = "[console_scripts]\na = b:c\n\n[fiber]\n# ours\nblue = plugin_blue\nred=red.sub:thing [x]\n"
        install(site / "first", "Fiber.Blue", "1.2", text)
        install(site / "second", "other", "3", "[fibers]\nno = no\n")
        found = told(distributions.entry_points("fiber"))
        assert found == by_stdlib("fiber")
        assert ("blue", "plugin_blue", "Fiber.Blue", "1.2") in found
        assert len(found) == 2

    def test_of_one_name_the_first_on_the_path_counts(self, site):
        install(site / "first", "fiber_blue", "2", "")
        install(site / "second", "Fiber_Blue", "1", "[fiber]\nblue = old\n")
        assert told(distributions.entry_points("fiber")) == by_stdlib("fiber") == []

    def test_metadata_of_older_tools(self, site):
        install(site / "second", "old", "1", "[fiber]\nold = old\n", headers="PKG-INFO")
        assert told(distributions.entry_points("fiber")) == by_stdlib("fiber") != []

    def test_a_finder_of_another_library_is_used(self, site, monkeypatch):
        class Finder(importlib.metadata.DistributionFinder):
            def find_spec(self, *_):
                return None

            def find_distributions(self, context=None):
                return [importlib.metadata.Distribution.at(site / "hidden" / "far-1.dist-info")]

        install(site / "hidden", "far", "1", "[fiber]\nfar = far\n")
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
        assert told(distributions.entry_points("fiber")) == [("far", "far", "far", "1")]

    def test_what_is_named_is_loaded(self):
        point = distributions.EntryPoint("a", "os:path.join [extra]", "a", "1")
        assert point.load() is __import__("os").path.join
        assert distributions.EntryPoint("a", "os", "a", "1").load() is __import__("os")

    def test_the_installed_ones_are_the_stdlibs(self):
        assert told(distributions.entry_points("fiber")) == by_stdlib("fiber")


class TestVersions:
    def test_of_what_is_installed(self):
        assert distributions.version("cloudpickle") == importlib.metadata.version("cloudpickle")

    def test_what_is_not_installed_has_none(self, site):
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            distributions.version("nothing")


def test_each_known_backend_names_its_distribution_and_no_word_is_used_twice():
    backends = known_backends()
    assert backends["k8s"].aliases == ("kubernetes",)
    for name, known in backends.items():
        assert (known.name, known.distribution) == (name, f"fiber-{name}")

    words = [word for known in backends.values() for word in (known.name, *known.aliases)]
    assert len(words) == len(set(words))
