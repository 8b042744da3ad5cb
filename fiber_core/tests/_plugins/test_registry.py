"""Names that plugins offer: an index that gives a name offered twice to neither."""

import pytest

from fiber._plugins.manager import BrokenPlugin, Registry, Source, broken_backend
from fiber.exceptions import PluginClashError

ONE, TWO, CORE = (
    Source("one", "fiber-one", "1"),
    Source("two", "fiber-two"),
    Source("c", "fiber-core"),
)


@pytest.fixture
def index():
    return Registry("the word")


def test_a_name_offered_once_is_found(index):
    index.add(ONE, ["a", "b"], "offer")

    assert index.find("b") == "offer"
    assert index.source("b") == ONE
    assert index.find("c") is None


def test_a_name_offered_twice_belongs_to_neither(index):
    index.add(ONE, ["a"], "first")
    index.add(TWO, ["a"], "second")
    index.add(TWO, ["b"], "third")

    assert list(index.offers()) == ["third"]
    with pytest.raises(
        PluginClashError, match="the word 'a' is offered by fiber-one 1 and fiber-two;"
    ):
        index.find("a")


def test_an_offer_that_lost_an_alias_keeps_its_name(index):
    index.add(ONE, ["a", "x"], "first")
    index.add(TWO, ["b", "x"], "second")

    assert list(index.offers()) == ["first", "second"]
    with pytest.raises(PluginClashError, match="'x'"):
        index.find("x")


def test_the_core_keeps_its_names(index):
    index.add(CORE, ["a"], "ours")
    index.add(TWO, ["a"], "theirs")

    assert index.find("a") == "ours"
    assert list(index.offers()) == ["ours"]
    assert set(index.clashes) == {"a"}


def test_all_that_one_plugin_offers_is_listed_even_where_it_lost_the_name(index):
    index.add(ONE, ["a"], "first")
    index.add(TWO, ["a"], "second")

    assert list(index.offers(TWO)) == ["second"]


def test_a_plugin_that_belongs_to_no_distribution_is_named_by_its_object():
    class Mine:
        pass

    assert str(Source.of_object(Mine())) == "Mine"
    assert Source.of_object(Mine) != Source.of_object(Mine())


def test_a_broken_plugin_of_another_name_is_not_blamed():
    broken = BrokenPlugin("red", "fiber-red", "1", ValueError("no"))

    assert broken_backend("blue", [broken]) is None
    assert "fiber-red 1" in str(broken_backend("red", [broken]))
