"""The tests' own engine runs the tests' image and connects containers to this host."""

import contextlib
import socket
import threading


def test_a_container_reaches_a_listener_of_this_host_over_the_bridge(engine):
    with (
        socket.create_server((engine.gateway, 0)) as listener,
        contextlib.closing(engine.docker()) as client,
    ):

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=answer)
        thread.start()
        code = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); print(s.recv(9))"
        port = str(listener.getsockname()[1])
        output = client.containers.run(
            engine.image, ["python3", "-c", code, engine.gateway, port], remove=True
        )
        thread.join()

    assert output == b"b'hello'\n"


def test_the_image_holds_fiber(engine):
    code = "import fiber, fiber_docker; print(fiber.__name__, fiber_docker.__name__)"
    with contextlib.closing(engine.docker()) as client:
        output = client.containers.run(engine.image, ["python3", "-c", code], remove=True)

    assert output == b"fiber fiber_docker\n"
