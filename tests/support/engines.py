"""Tests of the core on any backend: ``pytest --fiber-backend NAME``, or ``FIBER_TEST_BACKEND=NAME``.

The engine is made ready once, for all workers of xdist, and chosen by the environment as users
choose it. Of all tests those with the mark ``any_backend`` run. Where jobs do not share this machine's
process ids, those with the mark ``one_host`` are skipped. Jobs of every engine see the folders of tests.
"""

import contextlib
import functools
import getpass
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

#: makes an engine ready and yields the variables by which a program uses it
Engine = Callable[[], AbstractContextManager[Mapping[str, str]]]

#: how many times longer a test may take on an engine than on this machine
_SLOWER = 4
_stack = contextlib.ExitStack()
_environ = pytest.MonkeyPatch()


@contextlib.contextmanager
def far() -> Iterator[Mapping[str, str]]:
    """Programs of this machine that see nothing of their submitter."""
    from remote_world import RemoteHost

    with tempfile.TemporaryDirectory(prefix="fiber-far-") as folder:
        yield RemoteHost(Path(folder)).environ()


@contextlib.contextmanager
def docker() -> Iterator[Mapping[str, str]]:
    """An engine of the tests' own."""
    import dockerd
    from require import need

    need("docker", dockerd.missing())
    mounted = [f"{_folders_of_tests()}:{_folders_of_tests()}"]
    if site := _site():
        mounted.append(f"{site}:{site}:ro")
    with dockerd.obtained() as engine:
        yield {
            "DOCKER_HOST": engine.url,
            "FIBER_IMAGE": engine.image,
            "FIBER_DOCKER_VOLUMES": ",".join(mounted),
            **_path_to(site),
        }


@contextlib.contextmanager
def ssh(*, apart: bool = False) -> Iterator[Mapping[str, str]]:
    """Three hosts.

    Args:
        apart: True where they reach neither the tests nor each other, so that all goes by streams.
    """
    from ssh_hosts import ssh_hosts

    with ssh_hosts("alpha", "beta", "gamma") as world:
        for host in world.hosts if apart else ():
            host.isolate()
            host.refuse_outgoing(to=world.address)
        yield {"FIBER_BACKEND": "ssh", **world.environ(slots=8)}


@contextlib.contextmanager
def slurm() -> Iterator[Mapping[str, str]]:
    """A cluster of three nodes of this machine, with CPUs enough for tests that ask for none."""
    from slurm_cluster import slurm_cluster

    with slurm_cluster() as cluster:
        # more than a job has that asks for none: some tests send hundreds of megabytes
        yield {**cluster.program_environ, "FIBER_MEMORY": "1G"}


@contextlib.contextmanager
def k8s(*, outside: bool = False) -> Iterator[Mapping[str, str]]:
    """An emulated cluster whose pods are containers of an engine of the tests' own.

    Args:
        outside: True where no pod reaches the tests, so that all goes by streams through the API server.
    """
    import dockerd
    from require import need

    need("docker", dockerd.missing())
    from cluster import Cluster
    from cluster.real import Docker

    site = _site()
    folders = {"tests": str(_folders_of_tests()), **({"site": site} if site else {})}
    with contextlib.ExitStack() as stack:
        runtime = Docker(engine := stack.enter_context(dockerd.obtained()))
        nodes = {
            "nodes": ["one", "two"],
            "capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        }
        cluster = stack.enter_context(Cluster.start(runtime=runtime, **nodes))
        template = Path(stack.enter_context(tempfile.TemporaryDirectory()), "pod.json")
        mounts = [{"name": name, "mountPath": folder} for name, folder in folders.items()]
        spec = {
            "volumes": [{"name": n, "hostPath": {"path": path}} for n, path in folders.items()],
            "containers": [{"name": "main", "volumeMounts": mounts}],
        }
        template.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}))
        address = {} if outside else {"FIBER_K8S_ADDRESS": runtime.gateway}
        yield {
            "FIBER_BACKEND": "k8s",
            "FIBER_IMAGE": engine.image,
            "FIBER_K8S_POD_TEMPLATE": str(template),
            "KUBECONFIG": str(cluster.kubeconfig),
            **address,
            **_path_to(site),
        }


def _site() -> str | None:
    """What is installed where the tests run, for jobs in images that lack it; only where it is asked for.

    Frameworks are too large for an image of the tests' own.
    """
    return sysconfig.get_path("purelib") if os.environ.get("FIBER_TEST_SITE") else None


def _path_to(site: str | None) -> dict[str, str]:
    if site is None:
        return {}
    found = [entry for entry in (os.environ.get("PYTHONPATH"), site) if entry]
    return {"FIBER_ENV": "PYTHONPATH", "PYTHONPATH": os.pathsep.join(found)}


def _folders_of_tests() -> Path:
    """Where pytest makes the folders of tests, so that children write into them."""
    folders = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    shared = Path(folders, f"pytest-of-{getpass.getuser()}")
    shared.mkdir(mode=0o700, exist_ok=True)
    return shared


ENGINES: Mapping[str, Engine] = {
    # this machine
    "local": lambda: contextlib.nullcontext({}),
    "far": far,
    "docker": docker,
    "ssh": ssh,
    "ssh-apart": functools.partial(ssh, apart=True),
    "slurm": slurm,
    "k8s": k8s,
    "k8s-outside": functools.partial(k8s, outside=True),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fiber").addoption(
        "--fiber-backend",
        metavar="NAME",
        choices=sorted(ENGINES),
        default=os.environ.get("FIBER_TEST_BACKEND") or None,
        help="run the tests with the mark any_backend, on this backend",
    )


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--fiber-backend")
    if name is None:
        return
    if not hasattr(config, "workerinput"):
        variables = {"FIBER_BACKEND": name, **_stack.enter_context(ENGINES[name]())}
        for key, value in variables.items():
            _environ.setenv(key, value)
    # the environment of a worker of xdist is that of the process that started it
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path.extend(entry for entry in found if entry and entry not in sys.path)


def pytest_unconfigure() -> None:
    _stack.close()
    _environ.undo()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    name = config.getoption("--fiber-backend")
    if name is None:
        return
    chosen = [item for item in items if item.get_closest_marker("any_backend")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
    from fiber._plugins.manager import load_plugins

    if not load_plugins().find_backend(os.environ["FIBER_BACKEND"]).capabilities.same_host:
        for item in items:
            _give_time(item)
            mark = item.get_closest_marker("one_host")
            if mark is not None:
                item.add_marker(pytest.mark.skip(reason=f"one host only: {mark.args[0]}"))


def _give_time(item: pytest.Item) -> None:
    """A process elsewhere takes seconds to start where other tests keep the machine busy."""
    mark = item.get_closest_marker("timeout")
    # empty where nobody set it, as in a checkout that is not ours
    usual = mark.args[0] if mark is not None else float(item.config.getini("timeout") or 0)
    item.add_marker(pytest.mark.timeout(usual * _SLOWER), append=False)
