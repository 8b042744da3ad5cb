"""The parts of pods that are requests of their own: binding, eviction, log, exec and the like."""

from __future__ import annotations

import json

import attrs
from aiohttp import web

from .authority import User
from .bodies import read_object
from .deletion import Deletion
from .kinds import NODES, PODS
from .kubelet import Kubelet
from .podlogs import PodLogs
from .refusals import Refused
from .requests import Asked
from .scheduler import bind
from .store import Object, Store
from .streams import Streams

__all__ = ["Subresources"]


@attrs.define
class Subresources:
    """Answers what is about a part of a pod."""

    store: Store
    deletion: Deletion
    kubelet: Kubelet
    logs: PodLogs
    streams: Streams

    async def answer(
        self, request: web.Request, asked: Asked, user: User
    ) -> web.StreamResponse | None:
        """The answer; None where the part is read and written as objects are."""
        part = asked.subresource
        if part in {"status", "resize", "ephemeralcontainers"}:
            return None
        assert asked.namespace is not None
        assert asked.name is not None
        pod = self.store.need(PODS, asked.namespace, asked.name)
        if part == "log":
            return await self.logs.answer(request, asked, pod)
        if part in {"exec", "attach", "portforward"}:
            return await self.streams.answer(request, asked, pod, user)
        if part == "binding":
            return await self._bind(request, asked, pod)
        return await self._evict(request, asked, pod)

    async def _bind(self, request: web.Request, asked: Asked, pod: Object) -> web.Response:
        body = (await read_object(request, asked)).thing
        there = pod["spec"].get("nodeName")
        if there:
            why = f'pod {asked.name} is already assigned to node "{there}"'
            raise Refused.conflict(PODS, asked.name or "", why, "pods/binding")
        node = body["target"]["name"]
        self.store.need(NODES, None, node)
        bind(self.store, pod, node)
        return _success(201)

    async def _evict(self, request: web.Request, asked: Asked, pod: Object) -> web.Response:
        text = await request.read()
        body = json.loads(text) if text.strip() else {}
        if (body.get("metadata") or {}).get("name", asked.name) != asked.name:
            message = "name in URL does not match name in Eviction object"
            raise Refused.bad_request(message)
        options = body.get("deleteOptions") or {}
        self.deletion.evict(pod, options, dry=asked.dry or options.get("dryRun") == ["All"])
        return _success(201)


def _success(code: int) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code,
    }
    return web.json_response(body, status=code)
