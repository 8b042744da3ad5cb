"""What every module of every distribution is held to."""

import ast
import re

import layout

CORE = list(layout.modules(layout.CORE))
# the API group of MPIJob, which is run on any backend, is not a backend
BACKEND_WORDS = re.compile(
    r"docker|podman|k8s|kube(?!flow)|paramiko|\bssh\b|boto|fiber[_-](local|ssh)|slurm",
    re.IGNORECASE,
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


def test_a_private_module_with_one_user_says_why_it_stands_alone():
    """What one other module of its package imports belongs into that one, as a rule."""
    modules = dict(CORE)
    users = {name: set() for name in modules}
    for name, path in CORE:
        for one in layout.imports(name, path, types=True):
            imported = layout.module_of(one.imported, modules)
            if imported is not None and imported != name:
                users[imported].add(name)
    silent = []
    for name, path in CORE:
        is_private = any(part.startswith("_") for part in name.split(".")[1:])
        if not is_private or path.name in {"__init__.py", "__main__.py"} or len(users[name]) != 1:
            continue
        (user,) = users[name]
        package = user if modules[user].name == "__init__.py" else user.rpartition(".")[0]
        if package == name.rpartition(".")[0]:
            prose = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if not re.search(r"\bapart from\b", prose, re.IGNORECASE):
                silent.append(f"{name}, imported by {user} alone")

    assert not silent, "\n".join(silent)


#: parts of Open MPI that have the names of what they start ranks by, or take hosts from
OF_OPEN_MPI = {
    ("implementations.py", "^slurm,tm,pbs,lsf,gridengine"),
    ("implementations.py", "ssh"),
}


def test_no_code_of_the_core_names_a_backend():
    named = [
        f"{path}:{line}: {word}"
        for _, path in CORE
        for line, word in words_of_code(path)
        if BACKEND_WORDS.search(word) and (path.name, word) not in OF_OPEN_MPI
    ]

    assert not named, "\n".join(named)


def test_every_warning_says_that_it_is_of_fiber():
    """Programs log to the same terminal; ``concurrent.futures`` words its own."""
    nameless = [
        f"{path}:{node.lineno}: {node.args[0].value}"
        for _, path in layout.modules(*layout.SOURCES)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"_?log\.(warning|error|exception|critical)", ast.unparse(node.func))
        and isinstance(node.args[0], ast.Constant)
        and not node.args[0].value.startswith(("fiber: ", "exception calling callback for"))
    ]

    assert not nameless, "\n".join(nameless)
