"""Every socket that Fiber makes or accepts says its own mode: a program's default is no affair of ours.

``socket.setdefaulttimeout()``, which programs call at import, gives a timeout to every socket that is
made or accepted afterwards, ours included.
"""

import ast

import layout

#: what makes a socket with the default timeout
MAKERS = {"socket", "socketpair", "accept", "create_server", "create_connection", "fromfd"}
MODES = {"setblocking", "settimeout"}


def makes_a_socket(node):
    """True for a call that makes or accepts a socket and names no timeout."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if not isinstance(called, ast.Attribute) or called.attr not in MAKERS:
        return False
    if called.attr == "accept":
        return not node.args
    if not (isinstance(called.value, ast.Name) and called.value.id == "socket"):
        return False
    # its second argument
    is_timed = len(node.args) > 1 or any(word.arg == "timeout" for word in node.keywords)
    return not (called.attr == "create_connection" and is_timed)


def own_nodes(function):
    """The nodes of a function, each with the one around it, without those of functions within it."""
    for child in ast.iter_child_nodes(function):
        yield child, function
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from own_nodes(child)


def names_of(node, around):
    """Source of what holds a new socket; nothing where nothing does."""
    while node is not None:
        targets = getattr(node, "targets", [None])
        target = getattr(node, "target", None) or getattr(node, "optional_vars", None) or targets[0]
        if isinstance(target, ast.Tuple):
            return list(map(ast.unparse, target.elts))
        if target is not None:
            return [ast.unparse(target)]
        node = around.get(node)
    return []


def sockets_without_a_mode(tree):
    """Lines that make a socket whose mode the same function does not set."""
    for scope in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]:
        around = dict(own_nodes(scope))
        called = {ast.unparse(n.func) for n in around if isinstance(n, ast.Call)}
        if "socket.setdefaulttimeout" in called:
            # the only thing that can be done about a socket that others use too
            continue
        for node in filter(makes_a_socket, around):
            names = names_of(node, around)
            if node.func.attr == "accept":
                # it returns the socket and an address
                names = names[:1]
            if not names or any(
                not {f"{name}.{mode}" for mode in MODES} & called for name in names
            ):
                yield node.lineno


def test_no_socket_of_ours_takes_the_programs_default_timeout():
    found = [
        f"{path}:{line}"
        for _, path in layout.modules(*layout.SOURCES)
        for line in sockets_without_a_mode(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert found == []
