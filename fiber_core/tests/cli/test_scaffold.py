"""A new plugin is made from templates: it has its own names, is whole, and overwrites nothing."""

import ast

import pytest

from fiber.cli.plugin import NewPlugin, create
from fiber.exceptions import FiberError


def relative(paths, folder):
    return sorted(str(path.relative_to(folder)) for path in paths)


def test_a_backend_has_source_tests_and_metadata(tmp_path):
    assert relative(create(NewPlugin("cart"), tmp_path / "new"), tmp_path / "new") == [
        "README.md",
        "pyproject.toml",
        "src/fiber_cart/__init__.py",
        "src/fiber_cart/backend.py",
        "src/fiber_cart/plugin.py",
        "src/fiber_cart/process.py",
        "src/fiber_cart/py.typed",
        "tests/test_conformance.py",
    ]


def test_a_resource_provider_has_its_own_template(tmp_path):
    paths = create(NewPlugin("sparks", "spark"), tmp_path)

    assert tmp_path / "src/fiber_sparks/provider.py" in paths
    text = (tmp_path / "src/fiber_sparks/provider.py").read_text()
    assert 'kind = "spark"' in text
    assert "SPARK_VISIBLE_DEVICES" in text


@pytest.mark.parametrize("plugin", [NewPlugin("two-words"), NewPlugin("two-words", "kind")])
def test_nothing_of_the_templates_is_left(tmp_path, plugin):
    for path in create(plugin, tmp_path):
        text = path.read_text()
        assert "{{" not in text
        assert "__module__" not in str(path)
        if path.suffix == ".py":
            ast.parse(text)


def test_the_entry_point_names_the_plugin(tmp_path):
    create(NewPlugin("two-words"), tmp_path)

    text = (tmp_path / "pyproject.toml").read_text()

    assert 'name = "fiber-two-words"' in text
    assert 'two-words = "fiber_two_words.plugin"' in text


@pytest.mark.parametrize("name", ["", "Cart", "cart_x", "-cart", "cart-", "1cart", "a/b", "kärt"])
def test_a_name_that_will_not_do_is_refused(name):
    with pytest.raises(FiberError, match="no name for a plugin"):
        NewPlugin(name)


@pytest.mark.parametrize("kind", ["two words", "Spark", "1", ""])
def test_a_kind_that_is_no_keyword_is_refused(kind):
    with pytest.raises(FiberError, match="no kind of devices"):
        NewPlugin("spark", kind)


def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(FiberError, match="not empty; name another one with --directory"):
        create(NewPlugin("cart"), tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(FiberError, match="cannot be written: Not a directory"):
        create(NewPlugin("cart"), tmp_path / "file" / "below")
