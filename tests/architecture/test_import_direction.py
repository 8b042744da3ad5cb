"""Imports run one way: model, pending, transport, dispatch, launch, API objects."""

import pytest

import layout

LAYERS = ["fiber.model", "fiber._tasks.pending", "fiber._wire", "fiber._tasks", "fiber._launch"]

# how values are made, which is below everything
VALUES = {"fiber._base.light_values", "fiber._base.values"}
# contracts and pure helpers that every layer may use; they import nothing of the layers but model
SHARED = {*VALUES, "fiber._version", "fiber.abc", "fiber.exceptions", "fiber.hookspecs"}
SDKS = {
    *("docker", "kubernetes", "paramiko", "boto3", "botocore"),
    *("fiber_docker", "fiber_k8s", "fiber_local", "fiber_ssh"),
}
ONLY_IN_TRANSPORT = {"pynng"}


def package_of(name):
    return next((layer for layer in LAYERS if name == layer or name.startswith(layer + ".")), None)


def rank(name):
    layer = package_of(name)
    return len(LAYERS) if layer is None else LAYERS.index(layer)


CORE = [found for name, path in layout.modules(layout.CORE) for found in layout.imports(name, path)]


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_a_layer_imports_only_those_below_it(layer):
    below = LAYERS[: LAYERS.index(layer) + 1]
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if package_of(found.importer) == layer
        and package_of(found.imported)
        and package_of(found.imported) not in below
    ]
    assert wrong == []


def test_the_model_imports_nothing_else_of_fiber():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if found.at_load
        and package_of(found.importer) == "fiber.model"
        and found.imported.startswith("fiber.")
        and found.imported not in VALUES
        and package_of(found.imported) != "fiber.model"
    ]
    assert wrong == []


def test_contracts_import_nothing_but_contracts_and_the_model():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if found.at_load
        and found.importer in SHARED
        and found.imported.startswith("fiber.")
        and package_of(found.imported) != "fiber.model"
        and not any(found.imported.startswith(name) for name in SHARED)
    ]
    assert wrong == []


def test_layers_do_not_import_api_objects():
    api = {"context", "managers", "pool", "process", "queues", "results", "runtime", "cli"}
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if found.at_load
        and rank(found.importer) < len(LAYERS)
        and found.imported.split(".")[0] == "fiber"
        and found.imported.split(".")[1] in api
    ]
    assert wrong == []


def test_no_backend_and_no_sdk_is_imported_by_the_core():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if found.imported.split(".")[0] in SDKS
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "sdk", ["docker", "kubernetes", "paramiko", "fiber_docker", "fiber_k8s", "fiber_ssh"]
)
@pytest.mark.parametrize("form", ["import {}", "def f():\n    from {}.part import x as y"])
def test_an_import_of_an_sdk_is_found_wherever_it_stands(sdk, form, tmp_path):
    module = tmp_path / "module.py"
    module.write_text(form.format(sdk))

    found = layout.imports("fiber.module", module)

    assert {one.imported.split(".")[0] for one in found} & SDKS == {sdk}


def test_pynng_is_imported_by_the_transport_alone():
    wrong = [
        f"{found.importer}:{found.line} imports {found.imported}"
        for found in CORE
        if found.imported.split(".")[0] in ONLY_IN_TRANSPORT
        and package_of(found.importer) != "fiber._wire"
    ]
    assert wrong == []
