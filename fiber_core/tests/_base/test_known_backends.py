"""Backends that are known by name without being installed."""

from fiber._base.known_backends import known_backends


def test_each_known_backend_names_the_distribution_to_install():
    for name, known in known_backends().items():
        assert known.name == name
        assert known.distribution == f"fiber-{name}"


def test_aliases_are_known_too():
    assert known_backends()["k8s"].aliases == ("kubernetes",)


def test_no_word_is_used_twice():
    words = [word for known in known_backends().values() for word in (known.name, *known.aliases)]

    assert len(words) == len(set(words))
