"""What every module of every distribution is held to."""

import ast
import re

import pytest

import layout

MODULES = list(layout.modules(*layout.SOURCES))
CORE = list(layout.modules(layout.CORE))
# the API group of MPIJob, which is run on any backend, is not a backend
BACKEND_WORDS = re.compile(
    r"docker|podman|k8s|kube(?!flow)|paramiko|\bssh\b|boto|fiber[_-](local|ssh)", re.IGNORECASE
)


def words_of_code(path):
    """Line and text of every identifier and string, without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in prose:
                yield node.lineno, node.value
        else:
            for field in ("id", "attr", "arg", "name", "module"):
                word = getattr(node, field, None)
                if isinstance(word, str):
                    yield getattr(node, "lineno", 0), word


@pytest.mark.parametrize("name,path", MODULES, ids=[name for name, _ in MODULES])
def test_a_module_says_what_it_is_for(name, path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name,path", CORE, ids=[name for name, _ in CORE])
def test_no_code_of_the_core_names_a_backend(name, path):
    assert [found for found in words_of_code(path) if BACKEND_WORDS.search(found[1])] == []


@pytest.mark.parametrize(
    "source",
    [
        "import docker",
        "from docker.errors import ImageNotFound",
        "import paramiko as p",
        "import importlib; importlib.import_module('kubernetes.client')",
        "def f():\n    from kubernetes import client",
        "if backend == 'ssh': pass",
        "DOCKER_HOST = 1",
        "f(podman=True)",
    ],
)
def test_a_backends_name_is_found_wherever_it_stands(source, tmp_path):
    (tmp_path / "module.py").write_text(source)

    words = [word for _, word in words_of_code(tmp_path / "module.py")]

    assert any(BACKEND_WORDS.search(word) for word in words)
