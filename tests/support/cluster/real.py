"""Pods whose containers run on dockerd, with addresses of their own and their node's files."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .containers import Container
from .dockerspec import container_config
from .dockerwire import EngineError, Wire
from .runtime import Mount, Running, StartRefused
from .store import Object

__all__ = ["Docker"]

_LABEL = "emulated.cluster"
_POD = "emulated.pod"
_PARTS = range(233, 253)
#: seconds that containers may take to let go of their network
_PATIENCE = 20.0
_FORMAT = re.compile(r"[a-z0-9._:/@-]+")


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
        self._any_image: str = engine.image
        self._hosts: Iterator[Any] = iter(())
        self.gateway = ""
        self._name = f"kube-{secrets.token_hex(4)}"
        self._addresses: dict[str, str] = {}
        self._starts: dict[str, set[asyncio.Task[Any]]] = {}
        self._free: list[str] = []
        self.folder = Path(os.devnull)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the API server listens besides loopback."""
        return (self.gateway,)

    @property
    def wire(self) -> Wire:
        """The engine."""
        return self._wire

    async def open(self) -> None:
        """Make the network."""
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
        msg = f"no network is free for another cluster, 10.{_PARTS[-1]} was the last"
        raise RuntimeError(msg)

    async def close(self) -> None:
        """Remove all containers and the network."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        try:
            while True:
                await self._remove(f"{_LABEL}={self._name}")
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
        """Choose an address; pods of several containers get a container that holds it."""
        if pod["spec"].get("hostNetwork"):
            return self.gateway
        uid = pod["metadata"]["uid"]
        # addresses that were used come again as late as can be
        address = str(next(self._hosts, None) or self._free.pop(0))
        self._addresses[uid] = address
        if self._shared(pod):
            await self._pause(pod, address)
        return address

    async def start(
        self,
        pod: Object,
        container: Object,
        environ: Mapping[str, str],
        mounts: Sequence[Mount],
        attempt: int,
    ) -> Running:
        """Make a container and start it."""
        uid = pod["metadata"]["uid"]
        work = asyncio.ensure_future(self._start(pod, container, environ, mounts, attempt))
        mine = self._starts.setdefault(uid, set())
        mine.add(work)
        work.add_done_callback(mine.discard)
        # whoever waits may be cancelled, the engine is asked to the end
        return await asyncio.shield(work)

    async def discard(self, pod: Object) -> None:
        """Remove a pod's containers."""
        uid = pod["metadata"]["uid"]
        if starts := self._starts.pop(uid, None):
            await asyncio.gather(*starts, return_exceptions=True)
        await self._remove(f"{_POD}={uid}")
        address = self._addresses.pop(uid, None)
        if address is not None:
            self._free.append(address)

    async def _start(
        self,
        pod: Object,
        container: Object,
        environ: Mapping[str, str],
        mounts: Sequence[Mount],
        attempt: int,
    ) -> Running:
        image = await self._image(container)
        meta = pod["metadata"]
        name = f"k8s_{container['name']}_{meta['name']}_{meta['namespace']}_{meta['uid']}_{attempt}"
        # as a kubelet has it, and a container's own list of mounts shows
        note = self.folder.joinpath(
            "pods", meta["uid"], "containers", container["name"], f"{attempt}"
        )
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch(mode=0o666)
        note.chmod(0o666)
        config = container_config(pod, container, environ, mounts, image)
        path = container.get("terminationMessagePath") or "/dev/termination-log"
        config["HostConfig"]["Binds"].append(f"{note}:{path}")
        config["Labels"] = self._labels(pod)
        self._join(pod, config)
        try:
            made = await self._wire.ask("POST", "/containers/create", config, name=name)
        except EngineError as error:
            raise StartRefused("CreateContainerError", error.message) from error
        identity = made["Id"]
        try:
            await self._wire.ask("POST", f"/containers/{identity}/start")
        except EngineError as error:
            await self._wire.ask("DELETE", f"/containers/{identity}", force=1)
            text = error.message.replace(
                "failed to create task for container", "failed to create containerd task"
            )
            if not text.startswith("failed to create containerd task"):
                text = f"failed to create containerd task: {text}"
            raise StartRefused("StartError", text, retried=False) from error
        return Container(self._wire, identity, pod, container, image, note)

    async def _image(self, container: Object) -> Any:
        name, policy = container["image"], container.get("imagePullPolicy")
        if not _FORMAT.fullmatch(name):
            bad = next((part for part in name.split("/") if part != part.lower()), name)
            bad = bad.partition(":")[0]
            why = f"repository name ({bad}) must be lowercase" if bad != bad.lower() else ""
            text = (
                f'Failed to apply default image tag "{name}": couldn\'t parse image name "{name}": '
                f"invalid reference format{': ' if why else ''}{why}"
            )
            raise StartRefused("InvalidImageName", text)
        try:
            return await self._wire.ask("GET", f"/images/{name}/json")
        except EngineError as error:
            if policy == "Never":
                text = f'Container image "{name}" is not present with pull policy of Never'
                raise StartRefused("ErrImageNeverPull", text) from error
            raise StartRefused("ErrImagePull", _unpulled(name)) from error

    def _join(self, pod: Object, config: Any) -> None:
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("hostNetwork"):
            config["HostConfig"]["NetworkMode"] = "host"
            config.pop("Hostname", None)
        elif self._shared(pod):
            config["HostConfig"]["NetworkMode"] = f"container:{self._pause_name(uid)}"
            config.pop("Hostname", None)
        else:
            config["HostConfig"]["NetworkMode"] = self._name
            place = {"IPAMConfig": {"IPv4Address": self._addresses[uid]}}
            config["NetworkingConfig"] = {"EndpointsConfig": {self._name: place}}

    async def _pause(self, pod: Object, address: str) -> None:
        first = pod["spec"]["containers"][0]
        uid = pod["metadata"]["uid"]
        image = await self._pause_image(first)
        config = container_config(
            pod, {"name": "POD", "image": image, "command": ["sleep", "infinity"]}, {}, (), None
        )
        config["Labels"] = self._labels(pod)
        config["HostConfig"]["NetworkMode"] = self._name
        place = {"IPAMConfig": {"IPv4Address": address}}
        config["NetworkingConfig"] = {"EndpointsConfig": {self._name: place}}
        name = self._pause_name(uid)
        await self._wire.ask("POST", "/containers/create", config, name=name)
        await self._wire.ask("POST", f"/containers/{name}/start")

    async def _pause_image(self, container: Object) -> str:
        """An image that has a program which waits: the pod's own, else the tests'."""
        with contextlib.suppress(EngineError):
            await self._wire.ask("GET", f"/images/{container['image']}/json")
            return str(container["image"])
        return self._any_image

    def _pause_name(self, uid: str) -> str:
        return f"k8s_POD_{uid}"

    def _shared(self, pod: Object) -> bool:
        """Whether the address must outlive a container."""
        spec = pod["spec"]
        return (
            len(spec["containers"]) > 1
            or bool(spec.get("initContainers"))
            or spec.get("restartPolicy") != "Never"
        )

    def _labels(self, pod: Object) -> dict[str, str]:
        return {_LABEL: self._name, _POD: pod["metadata"]["uid"]}

    async def _remove(self, label: str) -> None:
        filters = f'{{"label": ["{label}"]}}'
        found = await self._wire.ask("GET", "/containers/json", all=1, filters=filters)

        async def one(identity: str) -> None:
            with contextlib.suppress(EngineError):
                await self._wire.ask("DELETE", f"/containers/{identity}", force=1, v=1)

        await asyncio.gather(*(one(item["Id"]) for item in found))


def _unpulled(name: str) -> str:
    first, _, rest = name.partition("/")
    host, path = (first, rest) if rest and ("." in first or ":" in first) else ("", name)
    path, _, tag = path.partition(":")
    host = host or "registry-1.docker.io"
    bare = host.partition(":")[0]
    url = f"https://{host}/v2/{path}/manifests/{tag or 'latest'}"
    return (
        f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": failed '
        f'to do request: Head "{url}": dial tcp: lookup {bare}: no such host'
    )


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
