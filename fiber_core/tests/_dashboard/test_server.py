"""The server of the page: who is answered, with what, and that one who does not read costs nothing."""

import contextlib
import http.client
import json
import re
import socket
import threading
from urllib.parse import urlsplit

import pytest

import require
from fiber._dashboard import server as module
from fiber._dashboard.server import Guard, Server
from fiber.exceptions import ConfigError, FiberError
from fiber.model import Timing
from simulated_run import Simulated, run_of
from waiting import PATIENCE, until

TOKEN = "the-token-of-these-tests"
PATHS = (
    "/",
    "/page/dashboard.js",
    "/runs",
    "/events?run=5b7d21c0",
    "/log?run=5b7d21c0&job=1",
    "/x",
)


@pytest.fixture(autouse=True)
def _installed():
    require.need_module("starlette")
    require.need_module("uvicorn")


@contextlib.contextmanager
def serving(*runs, scale=0.02):
    server = Server(lambda: list(runs), "127.0.0.1:0", Timing.at(scale), token=TOKEN)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join(PATIENCE)


@pytest.fixture
def run():
    return Simulated()


@pytest.fixture
def server(run):
    with serving(run_of(run)) as server:
        yield server


def ask(server, path, *, token=TOKEN, method="GET", **headers):
    """Status, headers and body of an answer; those of a stream up to its third event."""
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        if answer.getheader("content-type", "").startswith("text/event-stream"):
            body = b"".join(answer.readline() for _ in range(9))
        else:
            body = answer.read()
        return answer.status, answer.headers, body


def events(body):
    """Events of a stream: their data by kind."""
    found = re.findall(rb"event: (\w+)\ndata: (.*)\n\n", body)
    return {kind.decode(): json.loads(data) for kind, data in found}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="no token"),
        pytest.param({"query": "the-token-of-these-test"}, id="a part of it"),
        pytest.param({"query": TOKEN, "Host": "evil.example"}, id="another name"),
        pytest.param(
            {"query": TOKEN, "Host": "127.0.0.1.evil.example:8237"}, id="a name like ours"
        ),
        pytest.param({"query": TOKEN, "Host": "10.0.0.1"}, id="another address"),
        pytest.param({"Cookie": f"fiber-00000000={TOKEN}"}, id="another's cookie"),
        pytest.param({"query": "%ff%00%e9"}, id="no text"),
    ],
)
def test_who_has_not_the_token_or_comes_by_another_name_is_told_nothing(server, path, given):
    given = dict(given)
    token = given.pop("query", None)
    if token:
        path += f"{'&' if '?' in path else '?'}token={token}"

    status, headers, body = ask(server, path, token=None, **given)

    assert (status, body) == (403, b"")
    assert "set-cookie" not in headers
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_the_address_gives_a_cookie_and_the_cookie_the_rest(server):
    place = urlsplit(server.url)
    status, headers, body = ask(server, f"/?{place.query}", token=None)
    cookie, *attributes = headers["set-cookie"].split("; ")

    assert (status, set(attributes)) == (200, {"HttpOnly", "Path=/", "SameSite=Strict"})
    assert TOKEN.encode() not in body
    for path in PATHS[:-1]:
        status, headers, body = ask(server, path, token=None, Cookie=f"other=1; {cookie}")
        assert status == 200
        assert body
        assert "set-cookie" not in headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
    for path in ("/x", "/page/index.html", "/page/..%2fserver.py", "/events?run=x", "/log?run=x"):
        assert ask(server, path, token=None, Cookie=cookie)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/", token=None, Cookie=cookie, method=method)[0] == 405


@pytest.mark.parametrize(
    "host, name, is_answered",
    [
        ("127.0.0.1", "localhost:1234", True),
        ("127.0.0.1", "[::1]:8237", True),
        ("127.0.0.1", "192.0.2.7:8237", False),
        ("0.0.0.0", "192.0.2.7:8237", True),
        ("0.0.0.0", "[2001:db8::7]", True),
        ("0.0.0.0", "evil.example", False),
        ("login.example", "login.example:80", True),
    ],
)
def test_names_that_may_lead_elsewhere_are_not_ours(host, name, is_answered):
    guard = Guard(None, TOKEN, host)

    assert guard._names_us([name]) is is_answered
    assert not guard._names_us([])
    assert not guard._names_us([name] * 2)


def test_the_page_has_nothing_that_its_policy_forbids_or_of_another_host():
    files = {name: text.decode() for name, text in module.Pages(list, Timing())._files.items()}

    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", files["index.html"])
    addresses = re.findall(r"https?://[^\s\"']+", "".join(files.values()))
    # names of formats, which nobody loads
    assert set(addresses) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", files["dashboard.js"]
    )


def test_a_run_is_told_as_events_with_its_workers_errors_and_plots(server):
    _, headers, body = ask(server, "/events?run=5b7d21c0")
    told = events(body)

    assert headers["content-type"].startswith("text/event-stream")
    assert told["history"] == []
    state = told.get("state") or events(ask(server, "/events?run=5b7d21c0")[2])["state"]
    assert state["run"]["program"] == ["/home/me/train.py", "--cases", "4000"]
    assert len(state["workers"]) == 8
    # pool, name, host, pid, state
    assert state["workers"][-1][:5] == [0, "PoolWorker-8", "", None, "waiting"]
    assert state["point"]["memory"] > 7 * 180_000_000
    runs = json.loads(ask(server, "/runs")[2])
    assert [one["id"] for one in runs] == ["5b7d21c0"]
    log = json.loads(ask(server, "/log?run=5b7d21c0&job=abc")[2])
    assert log["lines"][0] == "step 0 of abc"


def test_one_who_looks_later_is_told_what_was_before(server):
    until(lambda: len(events(ask(server, "/events?run=5b7d21c0")[2])["history"]) > 2)


class Silent:
    def __init__(self):
        self.asked = []
        self.is_closed = False

    def ask(self, what, **facts):
        self.asked.append(what)
        msg = "the program of run 5b7d21c0 does not answer"
        raise FiberError(msg)

    def close(self):
        self.is_closed = True


def test_a_program_that_does_not_answer_is_told_of_and_asked_anew():
    silent = Silent()
    with serving(run_of(silent)) as server:
        _, _, body = ask(server, "/events?run=5b7d21c0")
        log = json.loads(ask(server, "/log?run=5b7d21c0&job=abc")[2])

    assert events(body)["silent"] == {"reason": "the program of run 5b7d21c0 does not answer"}
    assert log == {"error": "the program of run 5b7d21c0 does not answer"}
    assert silent.is_closed


class Counted(Simulated):
    asked = 0

    def ask(self, what, **facts):
        self.asked += 1
        return super().ask(what, **facts)


def test_nobody_is_asked_while_nobody_looks():
    counted = Counted()
    with serving(run_of(counted), scale=0.001) as server:
        ask(server, "/")
        ask(server, "/runs")
        assert counted.asked == 0
        ask(server, "/events?run=5b7d21c0")
        until(lambda: server_is_idle(counted))


def server_is_idle(counted):
    """True where it was not asked for much longer than between two looks."""
    before = counted.asked
    threading.Event().wait(0.2)
    return counted.asked == before > 0


def test_a_browser_that_does_not_read_does_not_keep_others_from_it():
    with serving(run_of(Simulated(2000))) as server, contextlib.ExitStack() as stack:
        place = urlsplit(server.url)
        for _ in range(3):
            slow = stack.enter_context(socket.create_connection((place.hostname, place.port), 5))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(
                f"GET /events?run=5b7d21c0&{place.query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
        for _ in range(3):
            assert events(ask(server, "/events?run=5b7d21c0")[2])["history"] is not None


def test_more_browsers_than_can_be_told_are_refused(monkeypatch, server):
    monkeypatch.setattr(module, "_MOST_WATCHERS", 0)

    assert ask(server, "/events?run=5b7d21c0")[0] == 503


def test_addresses_that_are_none_or_taken_are_told():
    with pytest.raises(ConfigError, match="HOST:PORT, such as 127.0.0.1:8237, and not at '8237'"):
        Server(list, "8237", Timing())
    with serving() as server:
        taken = f"127.0.0.1:{urlsplit(server.url).port}"
        with pytest.raises(
            FiberError, match=f"cannot be served at {taken}: Address already in use"
        ):
            Server(list, taken, Timing())


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(FiberError, match=r"needs starlette and uvicorn: pip install 'fiber-core\["):
        module.require()
