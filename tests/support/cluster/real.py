"""Pods whose containers run on dockerd, with addresses of their own and their node's files."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import ipaddress
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from .hollow import Ended, LogQuery, Mount, StartRefused, start_process
from .kubelet import expand
from .objects import Object, quantity

_LABEL = "emulated.cluster"
_PARTS = range(233, 253)
#: seconds that containers may take to let go of their network
_PATIENCE = 20.0
_VERSION = "v1.41"
_HEADER = struct.Struct(">BxxxL")
_CPU_PERIOD = 100_000
_KILLED = 137
#: most bytes of a termination message
_MESSAGE = 4096
_CLONE_NEWNET = 0x40000000
#: namespaces of a container, by their names in /proc, as nsenter calls them
_SPACES = {"mnt": "mount", "uts": "uts", "ipc": "ipc", "net": "net", "pid": "pid"}


# -- the engine's interface


class EngineError(Exception):
    """The engine has refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Wire:
    """Requests to the engine at a socket, without threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready; in the loop that will ask."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        """End all that was asked."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """A request, and its answer from JSON."""
        async with self.stream(method, path, body, **query) as response:
            text = await response.read()
            if response.status >= 400:
                raise EngineError(response.status, json.loads(text)["message"].strip())
            return json.loads(text) if text.strip() else None

    def stream(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """A request whose answer is read as it comes."""
        assert self._session is not None
        told = {name: str(value) for name, value in query.items() if value is not None}
        url = f"http://engine/{_VERSION}{path}"
        return self._session.request(method, url, json=body, params=told)


async def _frames(reader: Any) -> AsyncIterator[tuple[int, bytes]]:
    """Take apart the engine's stream of standard output (1) and standard error (2)."""
    while True:
        try:
            channel, size = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            yield channel, await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError, aiohttp.ClientError):
            return


# -- all pods


class Docker:
    """A runtime on an engine of the tests' own (``dockerd.Engine``).

    Each cluster has a network of its own on the engine: pods reach one another, and the API
    server at the network's gateway. An image that the engine has counts as pulled, whatever the
    policy; what it lacks cannot be pulled, for no registry is there.
    """

    #: volumes are files
    real = True

    def __init__(self, engine: Any) -> None:
        self._wire = Wire(engine.url.removeprefix("unix://"))
        self._number = int(engine.gateway.split(".")[2])
        self._hosts: Iterator[Any] = iter(())
        self.gateway = ""
        self._name = f"kube-{secrets.token_hex(4)}"
        self._addresses: dict[str, str] = {}
        self._starts: dict[str, asyncio.Task[Container]] = {}
        self._free: list[str] = []
        self._notes = Path(os.devnull)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the API server listens besides loopback."""
        return (self.gateway,)

    async def open(self, folder: Path) -> None:
        """Make the network; termination messages go below a folder."""
        self._notes = folder
        self._wire.open()
        for part in _PARTS:
            network = ipaddress.ip_network(f"10.{part}.{self._number}.0/24")
            self._hosts = network.hosts()
            self.gateway = str(next(self._hosts))
            body = {
                "Name": self._name,
                "Labels": {_LABEL: self._name},
                "IPAM": {"Config": [{"Subnet": str(network), "Gateway": self.gateway}]},
                "Options": {"com.docker.network.bridge.enable_ip_masquerade": "false"},
            }
            try:
                made = await self._wire.ask("POST", "/networks/create", body)
            except EngineError as error:
                # another cluster of this engine has these addresses
                if "overlap" not in error.message:
                    raise
            else:
                bridge = f"br-{made['Id'][:12]}"
                await asyncio.to_thread(_remove_leftovers, self.gateway, bridge)
                return
        raise RuntimeError(f"no network is free for another cluster, 10.{_PARTS[-1]} was the last")

    async def close(self) -> None:
        """Remove all containers and the network."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        try:
            while True:
                filters = json.dumps({"label": [f"{_LABEL}={self._name}"]})
                found = await self._wire.ask("GET", "/containers/json", all=1, filters=filters)
                await asyncio.gather(*(self._remove(item["Id"]) for item in found))
                try:
                    await self._wire.ask("DELETE", f"/networks/{self._name}")
                except EngineError as error:
                    # a container is still on its way out, and nobody tells when it is
                    if error.status != 403 or asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(0.1)
                else:
                    return
        finally:
            await self._wire.close()

    async def prepare(self, pod: Object) -> str:
        """Choose an address."""
        # those that were used come again as late as can be
        address = str(next(self._hosts, None) or self._free.pop(0))
        self._addresses[pod["metadata"]["uid"]] = address
        return address

    async def start(
        self, pod: Object, container: Object, environ: Mapping[str, str], mounts: Sequence[Mount]
    ) -> Container:
        """Make a container and start it."""
        work = asyncio.ensure_future(self._start(pod, container, environ, mounts))
        self._starts[pod["metadata"]["uid"]] = work
        # whoever waits may be cancelled, the engine is asked to the end
        return await asyncio.shield(work)

    async def discard(self, pod: Object) -> None:
        """Remove a pod's container."""
        uid = pod["metadata"]["uid"]
        if (start := self._starts.pop(uid, None)) is not None:
            await asyncio.gather(start, return_exceptions=True)
            await self._remove(f"k8s_{uid}")
        address = self._addresses.pop(uid, None)
        if address is not None:
            self._free.append(address)

    async def _start(
        self, pod: Object, container: Object, environ: Mapping[str, str], mounts: Sequence[Mount]
    ) -> Container:
        meta, name = pod["metadata"], container["image"]
        try:
            image = await self._wire.ask("GET", f"/images/{name}/json")
        except EngineError as error:
            text = f'failed to pull and unpack image "{name}": dial tcp: lookup: no such host'
            raise StartRefused("ErrImagePull", text) from error
        # as a kubelet has it, and a container's own list of mounts shows
        note = self._notes / "pods" / meta["uid"] / "containers" / container["name"] / "0"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        note.chmod(0o666)
        config = _config(container, environ, mounts)
        config["Hostname"] = pod["spec"].get("hostname") or meta["name"]
        config["Labels"] = {_LABEL: self._name}
        config["HostConfig"]["Binds"].append(f"{note}:{container['terminationMessagePath']}")
        config["HostConfig"]["NetworkMode"] = self._name
        place = {"IPAMConfig": {"IPv4Address": self._addresses[meta["uid"]]}}
        config["NetworkingConfig"] = {"EndpointsConfig": {self._name: place}}
        label = f"k8s_{meta['uid']}"
        try:
            await self._wire.ask("POST", "/containers/create", config, name=label)
        except EngineError as error:
            raise StartRefused("CreateContainerError", error.message) from error
        try:
            await self._wire.ask("POST", f"/containers/{label}/start")
        except EngineError as error:
            text = f"failed to create containerd task: {error.message}"
            raise StartRefused("StartError", text) from error
        return Container(self._wire, label, (name, image["Id"]), note)

    async def _remove(self, identity: str) -> None:
        # it may not have been made
        with contextlib.suppress(EngineError):
            await self._wire.ask("DELETE", f"/containers/{identity}", force=1, v=1)


def _config(
    container: Object, environ: Mapping[str, str], mounts: Sequence[Mount]
) -> dict[str, Any]:
    """What the engine is to make of a container."""
    known = dict(environ)
    limits = container["resources"].get("limits") or {}
    host: dict[str, Any] = {
        "Binds": [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in mounts],
        "LogConfig": {"Type": "json-file", "Config": {}},
    }
    if "memory" in limits:
        # no swap besides, as on a node without swap
        host["Memory"] = host["MemorySwap"] = int(quantity(limits["memory"]))
    if "cpu" in limits:
        host["CpuPeriod"] = _CPU_PERIOD
        host["CpuQuota"] = max(1000, int(quantity(limits["cpu"]) * _CPU_PERIOD))
    security = container.get("securityContext") or {}
    host["CapDrop"] = (security.get("capabilities") or {}).get("drop")
    if security.get("allowPrivilegeEscalation") is False:
        host["SecurityOpt"] = ["no-new-privileges"]
    config: dict[str, Any] = {
        "Image": container["image"],
        "Env": [f"{name}={value}" for name, value in environ.items()],
        "HostConfig": host,
    }
    if container.get("command"):
        config["Entrypoint"] = [expand(word, known) for word in container["command"]]
        config["Cmd"] = []
    if container.get("workingDir"):
        config["WorkingDir"] = container["workingDir"]
    return config


def _remove_leftovers(gateway: str, bridge: str) -> None:
    """Bridges of engines that were killed have our address still, and our packets go there.

    Our engine has given the address to our bridge alone, and no living engine has our number.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    ip = shutil.which("ip", path=path) or "ip"
    found = subprocess.run(
        [ip, "-j", "-4", "addr", "show", "to", f"{gateway}/32"], capture_output=True, check=True
    )
    for link in json.loads(found.stdout or b"[]"):
        name = link.get("ifname", "")
        if name.startswith("br-") and name != bridge:
            subprocess.run([ip, "link", "delete", name], check=False)


# -- one container


class Container:
    """A container that was started: its end, its log, processes in it, its ports."""

    def __init__(self, wire: Wire, identity: str, image: tuple[str, str], note: Path) -> None:
        self._wire, self._note = wire, note
        self._path = f"/containers/{identity}"
        self.image, self.image_id = image
        self._end = asyncio.ensure_future(self._wait())

    async def wait(self) -> Ended:
        return await asyncio.shield(self._end)

    async def stop(self, grace: float) -> None:
        """Ask it to end, and kill it when it has not ended after ``grace`` seconds."""
        await self._signal("SIGTERM")
        # two seconds are the least that kubelets give
        done, _ = await asyncio.wait({self._end}, timeout=max(grace, 2) if grace > 0 else 0)
        if not done:
            await self._signal("SIGKILL")
        await self.wait()

    async def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        """What it wrote, with the engine's times where they are wanted."""
        asked = self._wire.stream(
            "GET",
            f"{self._path}/logs",
            stdout=1,
            stderr=1,
            follow=int(query.follow),
            timestamps=int(query.timestamps),
            tail=query.tail if query.tail is not None else "all",
            since=None if query.since is None else f"{query.since:.9f}",
        )
        async with asked as response:
            if response.status < 400:
                async for _, data in _frames(response.content):
                    yield data

    async def exec(self, argv: Sequence[str], *, has_input: bool) -> asyncio.subprocess.Process:
        """Start a process in its namespaces, with its variables; LookupError once it has ended."""
        pid = await self._pid()
        with contextlib.ExitStack() as stack:
            try:
                environ = psutil.Process(pid).environ()
                spaces = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _SPACES}
            except (OSError, psutil.Error) as error:
                raise LookupError(pid) from error
            for space in spaces.values():
                stack.callback(os.close, space)
            # what is executed may kill all that it sees: never in a process that got the number since
            if _is_ours(spaces["pid"]):
                raise LookupError(pid)
            words = [f"--{_SPACES[kind]}=/proc/self/fd/{space}" for kind, space in spaces.items()]
            return await start_process(
                ["/usr/bin/nsenter", *words, *argv],
                has_input=has_input,
                env=environ,
                pass_fds=tuple(spaces.values()),
            )

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of its loopback."""
        try:
            pid = await self._pid()
        except EngineError as error:
            # it is gone by now, and nobody listens there
            raise ConnectionRefusedError(str(error)) from error
        # a thread of its own: its namespace is not given back
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            connecting = thread.submit(_connect, pid, port)
            try:
                sock = await asyncio.wrap_future(connecting)
            except asyncio.CancelledError:
                # an outage ends whoever asked, and nobody takes the connection that is made all the same
                connecting.add_done_callback(_give_up)
                raise
        return await asyncio.open_connection(sock=sock)

    async def _pid(self) -> int:
        return int((await self._wire.ask("GET", f"{self._path}/json"))["State"]["Pid"])

    async def _wait(self) -> Ended:
        with contextlib.suppress(EngineError):
            await self._wire.ask("POST", f"{self._path}/wait", condition="not-running")
        try:
            state = (await self._wire.ask("GET", f"{self._path}/json"))["State"]
        except EngineError:
            # somebody removed it behind our back
            return Ended(_KILLED)
        message = self._note.read_bytes()[:_MESSAGE].decode(errors="replace")
        return Ended(state["ExitCode"], state["OOMKilled"], message)

    async def _signal(self, name: str) -> None:
        # it may have ended meanwhile
        with contextlib.suppress(EngineError):
            await self._wire.ask("POST", f"{self._path}/kill", signal=name)


def _is_ours(space: int) -> bool:
    """Whether this process is in a namespace of processes."""
    return os.path.samestat(os.fstat(space), Path("/proc/self/ns/pid").stat())


def _connect(pid: int, port: int) -> socket.socket:
    """Connect to a port of the loopback that a process sees, in a thread that ends then."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(place, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(place)
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    sock.setblocking(False)
    return sock


def _give_up(connecting: concurrent.futures.Future[socket.socket]) -> None:
    """Close the connection that somebody asked for who has gone."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
