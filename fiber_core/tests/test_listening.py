"""Listeners and clients: addresses, who gets in and who does not, what travels, the stdlib's errors."""

import contextlib
import gc
import os
import pickle
import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing import connection as stdlib
from pathlib import Path

import pytest
from cryptography import x509

import fiber
from children import PATIENCE, finish, start
from fiber._objects import auth_listener, store
from fiber._objects.listener_addresses import dial_url
from fiber._objects.pipe.end import End
from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber._wire.handshake import Credentials
from fiber.connection import Client, Listener
from wire_world import Bomb, RawDialer, frame

pytestmark = pytest.mark.usefixtures("shared_runtime")

KEY = b"a secret of two programs"


@pytest.fixture(params=["AF_UNIX", "AF_INET"])
def address(request, tmp_path):
    return ("localhost", 0) if request.param == "AF_INET" else str(tmp_path / "here")


@pytest.fixture
def listener(address):
    with Listener(address, authkey=KEY) as listener:
        yield listener


def test_a_port_is_resolved_a_path_is_private_and_the_last_connections_origin_is_known(
    listener, address
):
    assert listener.last_accepted is None
    with Client(listener.address, authkey=KEY), listener.accept():
        if isinstance(address, tuple):
            for host, port in (listener.address, listener.last_accepted):
                assert host == "127.0.0.1"
                assert port > 0
        else:
            assert listener.address == address
            assert stat.S_IMODE(Path(address).stat().st_mode) == 0o600
            assert listener.last_accepted == ""


@pytest.mark.parametrize("family", [None, "AF_UNIX", "AF_INET"])
def test_without_an_address_there_is_one_that_the_run_reaches(family):
    with Listener(family=family) as listener, Client(listener.address, family) as client:
        client.send(1)
        assert listener.accept().recv() == 1


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_the_address_of_a_listener_that_is_closed_or_forgotten_is_gone(address, how):
    listener = Listener(address, authkey=KEY)
    found = listener.address
    if how == "closed":
        listener.close()
    del listener
    gc.collect()
    is_port = isinstance(address, tuple)
    assert is_port or not Path(address).exists()
    with pytest.raises(ConnectionRefusedError if is_port else FileNotFoundError):
        Client(found, authkey=KEY)


def test_an_address_is_free_again_while_an_old_connection_lives(address):
    first = Listener(address, authkey=KEY)
    client = Client(first.address, authkey=KEY)
    accepted = first.accept()
    first.close()

    with Listener(first.address, authkey=KEY) as second:
        assert second.address == first.address
        client.send("old")
        assert accepted.recv() == "old"
        client.close()
        with pytest.raises(EOFError):
            accepted.recv()
        accepted.close()
        with Client(second.address, authkey=KEY) as newer, second.accept() as newly:
            newer.send("new")
            assert newly.recv() == "new"


@pytest.mark.parametrize(
    "use,error,text",
    [
        (lambda: Listener(family="AF_PIPE"), ValueError, "Family AF_PIPE is not recognized"),
        (lambda: Client(r"\\.\pipe\here"), ValueError, "Family AF_PIPE is not recognized"),
        (lambda: Client(3), ValueError, "address type of 3 unrecognized"),
        (lambda: Listener(authkey="text"), TypeError, "authkey should be a byte string"),
        (lambda: Client(("localhost", 1), authkey=b""), ValueError, "authkey is empty"),
        (lambda: Listener("/nowhere/at/all"), FileNotFoundError, "No such file"),
    ],
)
def test_misuse_is_refused_as_by_the_stdlib(use, error, text):
    with pytest.raises(error, match=text):
        use()


@pytest.mark.parametrize("wrong", [b"another", None])
def test_another_authkey_is_refused_and_delays_no_other(listener, wrong):
    with pytest.raises(AuthenticationError):
        Client(listener.address, authkey=wrong)
    with pytest.raises(OSError, match="in use"):
        Listener(listener.address, authkey=wrong)
    assert serves(listener)


def test_what_a_listener_shows_to_anybody_does_not_follow_from_the_authkey():
    """Its certificate did, so that whoever connected once could try guesses elsewhere."""
    shown = [Credentials.of_authkey(KEY).with_certificate().certificate]
    for _ in range(2):
        with Listener(("127.0.0.1", 0), authkey=KEY) as listener:
            shown.append(ssl.get_server_certificate(listener.address))
    keys = [x509.load_pem_x509_certificate(one.encode()).public_key() for one in shown]
    assert len({key.public_numbers() for key in keys}) == 3


def test_a_thread_that_accepts_gets_an_error_when_the_listener_is_closed(address):
    listener = Listener(address, authkey=KEY)
    with ThreadPoolExecutor(2) as threads:
        accepted = [threads.submit(listener.accept) for _ in range(2)]
        listener.close()
        listener.close()
        for one in accepted:
            with pytest.raises(OSError, match="listener is closed"):
                one.result(PATIENCE)


def test_connections_outlive_their_listener_save_those_that_were_not_accepted(address):
    with Listener(address, authkey=KEY) as listener:
        client = Client(listener.address, authkey=KEY)
        end = listener.accept()
        other = Client(listener.address, authkey=KEY)
    with client, end, other:
        client.send(1)
        end.send(2)
        assert (end.recv(), client.recv()) == (1, 2)
        with pytest.raises(EOFError):
            other.recv()


def test_what_is_sent_before_the_peer_gets_its_end_is_for_its_auth_domain(listener, monkeypatch):
    """Whoever accepts may be faster than the answer to who came."""
    sent = threading.Event()
    real = auth_listener.encode

    def slowly(value, *args, **named):
        assert sent.wait(PATIENCE)
        return real(value, *args, **named)

    monkeypatch.setattr(auth_listener, "encode", slowly)
    child = start(put_into_what_comes, listener.address)
    with listener.accept() as end:
        numbers = fiber.Queue()
        end.send(numbers)
        sent.set()
        assert numbers.get(timeout=PATIENCE) == 7
        end.recv()
    finish(child)


def pass_on(address, key):
    """Give the client's end to another process, which puts into the queues that come."""
    end = Client(address, authkey=key)
    child = start(answer_in_queues, end)
    end.close()
    finish(child)


def answer_in_queues(end):
    with end:
        while (number_and_queue := end.recv()) is not None:
            number, numbers = number_and_queue
            numbers.put((number, bytes(number)))
            end.send(fiber.Queue)


@pytest.mark.parametrize("key", [KEY, None])
def test_on_one_host_both_ends_are_the_kernels_whoever_has_the_clients_end(address, key):
    """Objects in what is sent are for the programs that have the authkey, all the same."""
    with Listener(address, authkey=key) as listener:
        child = start(pass_on, listener.address, key)
        with listener.accept() as end:
            numbers = fiber.Queue()
            for number in (1, 2_000_000):
                end.send((number, numbers))
                assert numbers.get(timeout=PATIENCE) == (number, bytes(number))
                assert end.recv() is fiber.Queue
            if store.current().has_descriptors:
                assert isinstance(end._object, End)
                assert not end._object.target, "no message about it goes to this process"
            end.send(None)
            with pytest.raises(EOFError):
                end.recv()
            finish(child)


def put_into_what_comes(address):
    with Client(address, authkey=KEY) as end:
        numbers = end.recv()
        assert numbers._object.address.auth_domain is not None
        numbers.put(7)
        end.send("over")


# -- strangers, for whom nobody waits and of whose bytes nothing is loaded


def bare(listener):
    """A connection of a program that knows the address alone."""
    family = socket.AF_INET if isinstance(listener.address, tuple) else socket.AF_UNIX
    probe = socket.socket(family)
    probe.connect(listener.address)
    return probe


def serves(listener):
    with Client(listener.address, authkey=KEY) as client, listener.accept() as end:
        client.send("right")
        return end.recv() == "right"


def test_silent_strangers_and_nonsense_delay_no_other(listener, tmp_path):
    bomb = pickle.dumps(Bomb(str(tmp_path / "loaded")))
    with contextlib.ExitStack() as held:
        for junk in (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), bomb):
            probe = held.enter_context(bare(listener))
            with contextlib.suppress(OSError):
                probe.sendall(junk)
            assert serves(listener)
    assert not (tmp_path / "loaded").exists()


def test_a_pickle_before_the_proof_is_not_loaded(tmp_path):
    with Listener(str(tmp_path / "here"), authkey=KEY) as listener:
        url = dial_url(listener.address, "AF_UNIX")
        stranger = RawDialer(url, Credentials.of_authkey(b"another"))
        try:
            bomb = pickle.dumps(Bomb(str(tmp_path / "loaded")))
            stranger.send_bytes(frame(Kind.CALL, bomb, target=2**64 - 2))
            assert stranger.is_cut_off()
        finally:
            stranger.close()
        assert serves(listener)
    assert not (tmp_path / "loaded").exists()


def test_a_client_of_the_stdlib_is_turned_away(listener):
    with ThreadPoolExecutor(1) as threads:
        # it waits for a challenge in the stdlib's own words, which do not come
        client = threads.submit(stdlib.Client, listener.address, authkey=KEY)
        assert serves(listener)
        # over TLS it may wait as long as there is a listener
        listener.close()
        with pytest.raises((OSError, EOFError, AssertionError)):
            client.result(PATIENCE)


def test_a_listener_that_is_no_fiber_is_an_error_and_not_a_wait(tmp_path):
    path = str(tmp_path / "here")
    with socket.socket(socket.AF_UNIX) as other, ThreadPoolExecutor(1) as threads:
        other.bind(path)
        other.listen()

        def hang_up():
            with other.accept()[0] as peer:
                peer.sendall(b"220 at your service\r\n" + bytes(frames.HEADER.size))

        hung_up = threads.submit(hang_up)
        with pytest.raises((OSError, stdlib.AuthenticationError)):
            Client(path, authkey=KEY)
        hung_up.result(PATIENCE)
