"""The log of a container, over HTTP."""

from __future__ import annotations

import attrs
from aiohttp import web

from .kubelet import Kubelet
from .logquery import log_query
from .refusals import Refused
from .requests import Asked
from .store import Object

__all__ = ["PodLogs", "which_container"]


@attrs.define
class PodLogs:
    """Reads logs of whatever the kubelet has."""

    kubelet: Kubelet

    async def answer(self, request: web.Request, asked: Asked, pod: Object) -> web.StreamResponse:
        """The log, whole or as it comes."""
        query = asked.query
        name = which_container(pod, query.get("container"))
        wanted = log_query(asked)
        meta = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        if self.kubelet.lost(pod["spec"]["nodeName"]):
            raise _unreachable(self.kubelet, pod, "containerLogs", name)
        worker = self.kubelet.worker(pod)
        box = worker.box(name) if worker is not None else None
        handle = None
        if box is not None:
            handle = box.previous if asked.flag("previous") else box.handle
        if asked.flag("previous") and handle is None:
            message = f'previous terminated container "{name}" in pod "{meta["name"]}" not found'
            raise Refused.bad_request(message)
        if handle is None:
            if box is not None and box.ended:
                # it was never started, and so wrote nothing
                return web.Response(text="")
            waiting = (box.state.get("waiting") if box is not None else None) or {}
            reason = waiting.get("reason", "ContainerCreating")
            why = f"is waiting to start: {_IMAGES.get(reason, reason)}"
            message = f'container "{name}" in pod "{meta["name"]}" {why}'
            raise Refused.bad_request(message)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for text in handle.logs(wanted):
                await response.write(text)
            await response.write_eof()
        except ConnectionError:
            # whoever followed it has gone
            pass
        return response


_IMAGES = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def which_container(pod: Object, name: str | None) -> str:
    """The container that is meant."""
    spec, meta = pod["spec"], pod["metadata"]
    names = [item["name"] for item in spec["containers"]]
    inits = [item["name"] for item in spec.get("initContainers") or ()]
    if name is None:
        chosen = (meta.get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
        if chosen in names:
            return str(chosen)
        if len(names) == 1:
            return str(names[0])
        text = f"a container name must be specified for pod {meta['name']}, choose one of: [{' '.join(names)}]"
        if inits:
            text += f" or one of the init containers: [{' '.join(inits)}]"
        raise Refused.bad_request(text)
    if name not in names and name not in inits:
        message = f"container {name} is not valid for pod {meta['name']}"
        raise Refused.bad_request(message)
    return name


def _unreachable(kubelet: Kubelet, pod: Object, what: str, name: str) -> Refused:
    host = kubelet.host_ip(pod["spec"]["nodeName"])
    meta = pod["metadata"]
    path = f"{what}/{meta['namespace']}/{meta['name']}/{name}"
    text = f'Get "https://{host}:10250/{path}": dial tcp {host}:10250: connect: connection refused'
    return Refused(500, "", text)
