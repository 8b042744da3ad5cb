"""The core's own answers to its hooks are given last."""

import sys

import pytest

from fiber._plugins.defaults import fiber_listen_address
from fiber._plugins.manager import load_plugins
from fiber.hookspecs import hookimpl
from fiber.model import Interface, ListenAddress, Peers

HERE = "unix" if sys.platform == "linux" else "ipc"
LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
LOOPBACK6 = Interface(name="lo", address="::1", is_loopback=True)
FIRST = Interface(name="a", address="10.0.0.7")
SECOND = Interface(name="b", address="192.168.1.7")
SIX = Interface(name="a", address="2001:db8::7")
ZONE = Interface(name="a", address="fe80::7%a")
ZONE4 = Interface(name="c", address="169.254.3.4")
DOWN = Interface(name="d", address="10.9.9.9", is_up=False)


def peers(same_host):
    return Peers(same_host=same_host, directory="/run/fiber/0123abcd", name="m")


def test_peers_of_the_same_host_meet_at_a_socket_file():
    answer = fiber_listen_address(peers=peers(True), interfaces=[FIRST])

    assert answer == ListenAddress(bind_url=f"{HERE}:///run/fiber/0123abcd/m.sock")


@pytest.mark.parametrize(
    "interfaces, host",
    [
        ([LOOPBACK, FIRST, SECOND], "10.0.0.7"),
        ([LOOPBACK, SECOND, FIRST], "192.168.1.7"),
        ([LOOPBACK, SIX, ZONE4, FIRST], "10.0.0.7"),
        ([LOOPBACK6, ZONE, SIX], "[2001:db8::7]"),
        ([ZONE4, ZONE, LOOPBACK], "169.254.3.4"),
        ([DOWN, LOOPBACK], "127.0.0.1"),
        ([DOWN], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_other_hosts_dial_the_interface_that_reaches_farthest(interfaces, host):
    answer = fiber_listen_address(peers=peers(False), interfaces=interfaces)

    assert answer == ListenAddress(bind_url=f"tls+tcp://{host}:0")


def test_a_plugin_is_asked_before_the_core():
    class Elsewhere:
        @hookimpl
        def fiber_listen_address(self, backend):
            return ListenAddress(bind_url="tls+tcp://1.2.3.4:0") if backend == "blue" else None

    hook = load_plugins(entry_points=(), extra=[Elsewhere()]).hook

    def ask(backend):
        return hook.fiber_listen_address(backend=backend, peers=peers(False), interfaces=[FIRST])

    assert ask("blue").bind_url == "tls+tcp://1.2.3.4:0"
    assert ask("red").bind_url == "tls+tcp://10.0.0.7:0"


def test_a_job_is_submitted_to_its_backend_unless_a_plugin_wraps_it():
    class Backend:
        def submit(self, spec):
            return f"job of {spec}"

    class Loud:
        @hookimpl(wrapper=True)
        def fiber_submit_job(self, spec):
            return (yield).upper()

    def submit(*extra):
        hook = load_plugins(entry_points=(), extra=extra).hook
        return hook.fiber_submit_job(backend=Backend(), spec="spec")

    assert submit() == "job of spec"
    assert submit(Loud()) == "JOB OF SPEC"
