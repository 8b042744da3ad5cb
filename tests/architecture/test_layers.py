"""Imports point down the list of layers."""

import layers
import layout

MODULES = dict(layout.modules(layout.CORE))


def test_no_import_of_the_core_points_up_also_in_functions_and_for_types_alone():
    assert layers.of_the_core() == []


def test_every_layer_is_there():
    assert {layers.layer_of(name, layers.names()) for name in MODULES} == set(layers.names())


def test_an_import_that_points_up_and_a_module_without_a_layer_are_told(tmp_path):
    (tmp_path / "app" / "_wire").mkdir(parents=True)
    (tmp_path / "app" / "__init__.py").write_text("def f():\n    from app.pool import Pool\n")
    (tmp_path / "app" / "pool.py").write_text("import app._wire\nimport app\n")
    (tmp_path / "app" / "other.py").write_text("from app import pool\n")
    (tmp_path / "app" / "_wire" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..pool import Pool\n"
    )

    found = layers.upward(dict(layout.modules(tmp_path)), ["app._wire", "app.pool", "app"])

    assert sorted(edge.partition(": ")[2] for edge in found) == [
        "app._wire imports app.pool: app.pool is above app._wire",
        "app.other imports app.pool: app.other is in no layer",
        "app.pool imports app: app is above app.pool",
    ]


def test_pynng_is_imported_by_one_package_alone():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for name, path in MODULES.items()
        for found in layout.imports(name, path)
        if found.imported.split(".")[0] == "pynng" and not found.importer.startswith("fiber._wire.")
    ]
    assert wrong == []
