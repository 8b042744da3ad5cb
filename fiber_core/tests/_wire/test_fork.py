"""A fork by user code while fiber is in use: the child lives and ends well, without effect on peers."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time

import psutil
import pytest

import running
from fiber._wire.link import Link
from fiber.exceptions import PeerLostError
from forking import Program, environ, run, whole
from wire_world import TIMEOUT, Mailbox, hello


@pytest.fixture(scope="module", params=["unix", "ipc", "tls+tcp"])
def program(request):
    """A process with everything open, on each kind of connection."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        program = Program(request.param, folder)
        yield program
        program.close()


class TestTheChild:
    def test_it_ends_well_whatever_it_collects_or_closes(self, program):
        program.run(
            """
            import select

            def collect():
                global listening, link, client, peer
                del listening, link, client, peer
                gc.collect()

            def close():
                close_all()
                link.close()
                gc.collect()

            def fork_again():
                ended_well(in_child(gc.collect))

            ends = [link.end_fd, client._link.end_fd]
            for action in (int, collect, close, fork_again, gc.collect):
                ended_well(in_child(action))
                # the pipes that tell of an end are the parent's too: no byte is left in them
                assert not select.select(ends, [], [], 0)[0]
                assert works()
            """
        )

    def test_calling_fiber_in_the_child_is_an_error_with_the_fix(self, program):
        said = program.said(
            """
            def use():
                assert fork.is_forked_child()
                for attempt in (
                    lambda: link.receive(timeout=0),
                    lambda: link.receive(),
                    lambda: Link(listening.url, listening.credentials, hello("x")),
                    lambda: Client(listening.url, listening.credentials, hello("x"), Reactor()),
                    lambda: Endpoint(listening.credentials, hello("x"), listening.reactor),
                    lambda: peer.send(Kind.CAST, 1, 1, [b"x"]),
                    fork.check,
                ):
                    try:
                        attempt()
                    except ForkedError as error:
                        words = str(error)
                    else:
                        raise AssertionError(attempt)
                for attempt in (lambda: link.send(Kind.CAST, 1), lambda: client.cast(1, [])):
                    try:
                        attempt()
                    except (ForkedError, PeerLostError):
                        continue
                    raise AssertionError(attempt)
                print(words, flush=True)
                # the thread of a reactor that was made here has no name in the parent
                os._exit(0)

            ended_well(in_child(use))
            assert not fork.is_forked_child()
            """
        )
        assert "was forked from one that already used fiber" in said
        assert "start it with fiber.Process, or fork before the first use" in said
        assert "Traceback" not in said

    def test_it_may_be_forked_by_the_handler_thread(self, program):
        program.run(
            """
            forked = []
            done = threading.Event()

            def fork_there():
                pid = os.fork()
                if not pid:
                    close_all()
                    gc.collect()
                    os._exit(0)
                forked.append(pid)
                done.set()

            listening.reactor.call_soon(fork_there)
            assert done.wait(20)
            ended_well(forked[0])
            """
        )

    def test_threads_busy_with_fiber_do_not_disturb_it(self, program):
        """Forked at random moments of traffic, as a data loader does in the midst of training."""
        program.run(
            """
            stop = threading.Event()

            def traffic():
                while not stop.is_set():
                    pending = client.call(1, [b"x" * 100_000])
                    assert pending.wait(20)

            threads = [threading.Thread(target=traffic) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                ended_well(in_child(gc.collect))
            stop.set()
            for thread in threads:
                thread.join()
            """
        )

    def test_one_forked_before_the_first_use_may_use_fiber(self, scheme, folder):
        run(
            """
            def use():
                open_all(scheme, folder)
                close_all()

            ended_well(in_child(use))
            use()
            """,
            scheme,
            folder,
        )

    def test_locks_that_other_threads_hold_keep_it_from_nothing(self, folder):
        run(
            """
            open_all("ipc", folder)
            held = [
                listening.reactor._lock,
                listening.endpoint._lock,
                listening.endpoint._listeners["nng"]._socket._lock,
                peer._lock,
                link._large_message,
                link._socket._lock,
                link._socket._order,
                client._lock,
                client._link._socket._order,
            ]
            holding, go = threading.Event(), threading.Event()

            def hold():
                for lock in held:
                    lock.acquire()
                holding.set()
                go.wait(30)
                for lock in held:
                    lock.release()

            thread = threading.Thread(target=hold)
            thread.start()
            assert holding.wait(20)

            def act():
                listening.reactor.call_soon(int)
                listening.endpoint.close()
                link.close()
                listening.reactor.stop()
                gc.collect()

            pid = in_child(act)
            deadline = time.monotonic() + 20
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                assert time.monotonic() < deadline, "the child waits for a lock"
                time.sleep(0.01)
            go.set()
            thread.join()
            assert works()
            close_all()
            """,
            "ipc",
            folder,
        )


class TestWhatIsTheUsers:
    def test_a_pool_of_the_stdlibs_works_meanwhile(self, program):
        said = program.said(
            """
            import multiprocessing
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert works()
                print(pool.map(abs, range(-3, 0)))
                assert works()
            pool.join()
            """
        )
        assert said == "[3, 2, 1]\n"

    def test_its_sockets_stay_open_and_as_they_are(self, folder):
        run(
            """
            # with a default timeout, looking at a socket makes it non-blocking
            server = socket.create_server(("127.0.0.1", 0))
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
            unix, other = socket.socketpair()
            socket.setdefaulttimeout(5)
            open_all("tls+tcp", folder)

            def use():
                assert os.get_blocking(near.fileno()) and os.get_blocking(unix.fileno())
                assert socket.getdefaulttimeout() == 5
                near.sendall(b"from the child")
                unix.sendall(b"from the child")

            ended_well(in_child(use))
            for one in (far, other):
                assert one.recv(100) == b"from the child"
            for one in (near, far, unix, other, server):
                assert os.get_blocking(one.fileno())
                one.close()
            close_all()
            """,
            "ipc",
            folder,
        )

    def test_its_other_programs_inherit_no_descriptor(self, program):
        program.run(
            """
            for number in [int(name) for name in os.listdir("/proc/self/fd")]:
                if number > 2:
                    try:
                        assert not os.get_inheritable(number), number
                    except OSError:
                        continue
            """
        )


def test_peers_see_the_parents_death_although_the_child_lives_on(scheme, folder, listen):
    """The child's copies of the descriptors must not keep the connections open."""
    ours = listen(scheme)
    mailbox = Mailbox()
    ours.endpoint.serve(2, mailbox)
    script = """
    credentials = Credentials.from_json(json.loads(sys.stdin.readline()))
    url = sys.stdin.readline().strip()
    listening = ListeningEndpoint(scheme, folder, credentials=credentials)
    dialled = Link(url, credentials, hello("parent"))
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    print(pid, listening.url, flush=True)
    time.sleep(60)
    """
    theirs = folder / "theirs"
    theirs.mkdir()
    words = "-c", whole(script), scheme, str(theirs)
    parent = running.Program(folder, *words, environ=environ())
    child = None
    try:
        parent.tell(json.dumps(ours.credentials.with_certificate().to_json()))
        parent.tell(ours.url)
        pid, url = parent.line().split()
        child = psutil.Process(int(pid))
        link = Link(url, ours.credentials, hello("third"))
        assert ours.peer("parent").alive
        began = time.monotonic()
        parent.process.kill()
        with pytest.raises(PeerLostError):
            link.receive(timeout=TIMEOUT)
        assert mailbox.next_lost().ident == "parent"
        assert time.monotonic() - began < TIMEOUT / 2
        assert child.is_running()
        assert child.status() != psutil.STATUS_ZOMBIE
        link.close()
    finally:
        if child is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        parent.process.kill()
        # ends with the last that holds its output
        parent.process.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize("scheme", ["ipc", "tls+tcp"])
def test_sockets_that_a_program_left_open_are_closed_at_its_end(scheme, folder):
    """Not by nng's own end, which aborts the process while a thread of nng ends a TLS pipe."""
    run(
        """
        from multiprocessing import util
        from fiber._wire import nng

        def check():
            assert all(socket._closed for socket in left)

        open_all(scheme, folder)
        left = list(nng._open)
        assert left
        # the last of all
        util.Finalize(None, check, exitpriority=-20_000)
        """,
        scheme,
        folder,
    )
