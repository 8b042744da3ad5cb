"""Imports point down the list of layers."""

import pytest

import layers
import layout

#: a small core: each of its modules is on a layer of its own
LAYERS = ["app._base", "app._wire", "app._tasks", "app.pool", "app"]
MODULES = {
    "app/__init__.py": "def __getattr__(name):\n    from app.pool import Pool\n",
    "app/_base.py": "",
    "app/_wire/__init__.py": "from app import _base\n",
    "app/_wire/frames.py": "from app._base import value\n",
    "app/_tasks.py": "import app._wire.frames\n",
    "app/pool.py": "def f():\n    from app import _tasks\n",
}
#: an edge that is turned round: the module that now imports, in which form, and what is told
TURNED = {
    "at load": ("app/_base.py", "from app._wire import frames", "app._base", "app._wire.frames"),
    "of a package": ("app/_base.py", "import app._wire", "app._base", "app._wire"),
    "in a function": (
        "app/_wire/frames.py",
        "def f():\n    import app._tasks",
        "app._wire.frames",
        "app._tasks",
    ),
    "for types alone": (
        "app/_tasks.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from app.pool import Pool",
        "app._tasks",
        "app.pool",
    ),
    "relative": ("app/_wire/frames.py", "from ..pool import Pool", "app._wire.frames", "app.pool"),
    "of the package that has all": ("app/pool.py", "import app", "app.pool", "app"),
}


def upward(tmp_path, changed=None, added=""):
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + (added if name == changed else ""))
    return layers.upward(dict(layout.modules(tmp_path)), LAYERS)


def test_no_import_of_the_core_points_up():
    assert layers.of_the_core() == []


def test_every_layer_is_there():
    found = {layers.layer_of(name, layers.names()) for name, _ in layout.modules(layout.CORE)}

    assert found == set(layers.names())


def test_imports_that_point_down_are_right(tmp_path):
    assert upward(tmp_path) == []


@pytest.mark.parametrize("name", TURNED)
def test_an_edge_that_is_turned_round_is_told_with_both_names(name, tmp_path):
    file, text, importer, imported = TURNED[name]

    (found,) = upward(tmp_path, file, text)

    assert f": {importer} imports {imported}: " in found


def test_a_module_without_a_layer_is_told(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "other.py").write_text("import app._base")

    (found,) = upward(tmp_path)

    assert "app.other is in no layer" in found


def test_pynng_is_imported_by_one_package_alone():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for name, path in layout.modules(layout.CORE)
        for found in layout.imports(name, path)
        if found.imported.split(".")[0] == "pynng" and not found.importer.startswith("fiber._wire.")
    ]
    assert wrong == []
