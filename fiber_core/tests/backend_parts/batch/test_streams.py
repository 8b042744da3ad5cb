"""Streams into jobs by a command, and where a program listens whose jobs dial it."""

import sys

import pytest

from fiber.backend_parts.address import listen_address
from fiber.backend_parts.batch.streams import Streams
from fiber.exceptions import BackendUnavailableError
from fiber.model import Interface

_ECHO = """
import os, sys
os.write(1, sys.argv[1].encode())
while data := os.read(0, 65536):
    os.write(1, data)
"""


def echo(greeting="\x06fiber\n"):
    return (sys.executable, "-I", "-S", "-c", _ECHO, greeting)


@pytest.fixture
def streams():
    made = Streams("Fake", 30.0)
    yield made
    made.close()


class TestStreams:
    def test_bytes_go_both_ways_until_the_stream_is_closed(self, streams):
        with streams.open(echo(), "job") as stream:
            stream.sendall(bytes(range(256)))
            found = b""
            while len(found) < 256:
                found += stream.recv(256)
            assert found == bytes(range(256))

    @pytest.mark.parametrize("command", [echo("sh: error\n"), (sys.executable, "-c", "")])
    def test_one_that_does_not_come_up_is_an_error_that_names_the_job(self, streams, command):
        with pytest.raises(BackendUnavailableError, match="no stream into job-7"):
            streams.open(command, "job-7")

    def test_all_end_with_the_program_that_opened_them(self, streams):
        with streams.open(echo(), "job") as stream:
            streams.close()

            assert stream.recv(1) == b""
        with pytest.raises(BackendUnavailableError):
            streams.open(echo(), "job")


def interface(address, **more):
    return Interface(name="x", address=address, is_up=True, is_loopback=False, **more)


class TestListenAddress:
    OWN = (interface("fe80::1%x"), interface("2001:db8::7"), interface("10.0.0.7"))

    @pytest.mark.parametrize(
        "address, url, advertised",
        [
            (None, "tls+tcp://10.0.0.7:0", None),
            ("2001:db8::7", "tls+tcp://[2001:db8::7]:0", None),
            # a name, or one that is translated on the way
            ("login.cluster", "tls+tcp://0.0.0.0:0", "login.cluster"),
            ("192.0.2.1", "tls+tcp://0.0.0.0:0", "192.0.2.1"),
        ],
    )
    def test_it_is_the_first_one_that_others_reach_or_the_one_that_is_set(
        self, address, url, advertised
    ):
        found = listen_address(address, self.OWN)

        assert (found.bind_url, found.advertise_host) == (url, advertised)

    def test_a_host_without_one_listens_on_loopback(self):
        assert listen_address(None, ()).bind_url == "tls+tcp://127.0.0.1:0"
