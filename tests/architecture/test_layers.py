"""Imports point down the list of layers."""

import layers
import layout

MODULES = dict(layout.modules(layout.CORE))


def test_no_import_of_the_core_points_up_also_in_functions_and_for_types_alone():
    assert layers.of_the_core() == []


def test_every_layer_is_there():
    assert {layers.layer_of(name, layers.names()) for name in MODULES} == set(layers.names())


#: most modules in circles of imports; whoever cuts one lowers this
MOST_IN_CIRCLES = 5


def test_no_more_modules_import_each_other_in_circles_than_are_known():
    found = layers.circles(MODULES)

    assert sum(map(len, found)) <= MOST_IN_CIRCLES, "\n".join(
        " ".join(sorted(one)) for one in found
    )


def test_pynng_is_imported_by_one_package_alone():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for name, path in MODULES.items()
        for found in layout.imports(name, path)
        if found.imported.split(".")[0] == "pynng" and not found.importer.startswith("fiber._wire.")
    ]
    assert wrong == []
