"""The volumes of pods: folders of this host that hold secrets, claims, tokens and empty space."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs

from .authority import Authority
from .happenings import Happenings
from .kinds import CLAIMS, CONFIG_MAPS, SECRETS
from .podenv import field, resource
from .runtime import Mount
from .store import Object, Store

__all__ = ["Missing", "Volumes"]


class Missing(Exception):  # noqa: N818 - an answer, no failure
    """A volume cannot be there yet."""


@attrs.define
class Volumes:
    """Makes and removes what pods mount."""

    store: Store
    authority: Authority
    happenings: Happenings
    folder: Path
    #: whether files are made at all; a hollow kubelet only waits for what is missing
    real: bool = False
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    def changed(self) -> None:
        """Look again: something that pods may wait for has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def mount(self, pod: Object) -> dict[str, list[Mount]]:
        """Wait for a pod's volumes; the answer is the mounts of each container."""
        while True:
            news = self._news
            try:
                places = {volume["name"]: self._place(pod, volume) for volume in _volumes(pod)}
            except Missing as missing:
                self._tell(pod, str(missing))
                await news.wait()
            else:
                break
        if not self.real:
            return {}
        containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
        return {container["name"]: _mounts(container, places) for container in containers}

    def refresh(self, pod: Object) -> None:
        """Write a pod's projected volumes anew, with a new token."""
        if self.real:
            for volume in _volumes(pod):
                if "projected" in volume:
                    self._place(pod, volume)

    def discard(self, pod: Object) -> None:
        """Remove what a pod alone has used."""
        folder = self._folder(pod)
        if not folder.exists():
            return
        for path in sorted(folder.iterdir()):
            if os.path.ismount(path):
                subprocess.run(["umount", "-l", str(path)], check=True)
        shutil.rmtree(folder)

    def claim_folder(self, namespace: str, name: str) -> Path:
        """Where a claim's files are."""
        path = self.folder / "claims" / namespace / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def _folder(self, pod: Object) -> Path:
        return self.folder / "pods" / str(pod["metadata"]["uid"])

    def _tell(self, pod: Object, why: str) -> None:
        node = pod["spec"].get("nodeName", "")
        self.happenings.tell(pod, "FailedMount", why, node=node, warning=True)

    def _place(self, pod: Object, volume: Object) -> Path:
        kind = next(key for key in volume if key != "name")
        source = volume[kind] or {}
        name = volume["name"]
        failed = f'MountVolume.SetUp failed for volume "{name}" : '
        folder = self._folder(pod) / name
        if kind == "persistentVolumeClaim":
            return self._claim(pod, source["claimName"])
        if kind == "hostPath":
            return Path(source["path"])
        if kind == "emptyDir":
            if self.real:
                self._empty(folder, source)
            return folder
        if kind == "secret":
            files = self._keys(pod, SECRETS, source["secretName"], source, failed)
        elif kind == "configMap":
            files = self._keys(pod, CONFIG_MAPS, source["name"], source, failed)
        elif kind == "downwardAPI":
            files = self._downward(pod, source.get("items") or ())
        elif kind == "projected":
            files = {}
            for part in source.get("sources") or ():
                files |= self._projected(pod, part, failed)
        else:
            message = f"{failed}volumes of kind {kind} are not emulated"
            raise Missing(message)
        if self.real:
            default = source.get("defaultMode", 0o644)
            _write(folder, {n: (d, default if m is None else m) for n, (d, m) in files.items()})
        return folder

    def _claim(self, pod: Object, name: str) -> Path:
        namespace = pod["metadata"]["namespace"]
        there = self.store.get(CLAIMS, namespace, name)
        if there is None:
            message = f'persistentvolumeclaim "{name}" not found'
            raise Missing(message)
        return self.claim_folder(namespace, name)

    def _empty(self, folder: Path, source: Object) -> None:
        if folder.exists():
            return
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if source.get("medium") == "Memory":
            options = (
                ["-o", f"size={_bytes(source['sizeLimit'])}"] if source.get("sizeLimit") else []
            )
            argv = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
            subprocess.run(argv, check=True)
            folder.chmod(0o777)

    def _keys(
        self, pod: Object, kept: Any, name: str, source: Object, failed: str
    ) -> dict[str, tuple[bytes, int | None]]:
        there = self.store.get(kept, pod["metadata"]["namespace"], name)
        if there is None:
            if source.get("optional"):
                return {}
            raise Missing(f'{failed}{kept.plural[:-1]} "{name}" not found')
        data = {key: _raw(kept, value) for key, value in (there.get("data") or {}).items()}
        for key, value in (there.get("binaryData") or {}).items():
            data[key] = base64.b64decode(value)
        items = source.get("items")
        if not items:
            return {key: (value, None) for key, value in data.items()}
        for item in items:
            if item["key"] not in data and not source.get("optional"):
                raise Missing(
                    f"{failed}references non-existent {kept.plural[:-1]} key: {item['key']}"
                )
        return {i["path"]: (data[i["key"]], i.get("mode")) for i in items if i["key"] in data}

    def _downward(self, pod: Object, items: Any) -> dict[str, tuple[bytes, int | None]]:
        found = {}
        for item in items:
            if item.get("resourceFieldRef"):
                text = resource({}, item["resourceFieldRef"], pod)
            else:
                text = field(pod, item["fieldRef"]["fieldPath"], "", "")
            found[item["path"]] = (text.encode(), item.get("mode"))
        return found

    def _projected(
        self, pod: Object, part: Object, failed: str
    ) -> dict[str, tuple[bytes, int | None]]:
        if "serviceAccountToken" in part:
            told = part["serviceAccountToken"]
            token = self.authority.account_token(
                pod["metadata"]["namespace"],
                pod["spec"]["serviceAccountName"],
                pod,
                told.get("expirationSeconds", 3600),
            )
            return {told["path"]: (token.encode(), None)}
        if "configMap" in part:
            source = part["configMap"]
            return self._keys(pod, CONFIG_MAPS, source["name"], source, failed)
        if "secret" in part:
            return self._keys(pod, SECRETS, part["secret"]["name"], part["secret"], failed)
        return self._downward(pod, (part.get("downwardAPI") or {}).get("items") or ())


def _volumes(pod: Object) -> list[Object]:
    return list(pod["spec"].get("volumes") or ())


def _mounts(container: Object, places: dict[str, Path]) -> list[Mount]:
    found = []
    for mount in container.get("volumeMounts") or ():
        place = places[mount["name"]]
        if mount.get("subPath"):
            place = place / mount["subPath"]
            if not place.exists():
                place.mkdir(parents=True)
        found.append(Mount(str(place), mount["mountPath"], bool(mount.get("readOnly"))))
    return found


def _write(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name, (data, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # whoever reads it sees the old or the new, never a part
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.replace(path)


def _raw(kept: Any, value: str) -> bytes:
    return base64.b64decode(value) if kept is SECRETS else value.encode()


def _bytes(text: str) -> int:
    from .quantities import parse

    return int(parse(text))
