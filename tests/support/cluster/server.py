"""The API server: HTTPS on loopback, authentication, authorization, and the way to each verb."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from aiohttp import web

from .authority import ANONYMOUS, Authority, User
from .bodies import read_object, read_options, read_patch
from .connections import Connections
from .discovery import discovered
from .faults import Faults
from .kinds import PODS
from .refusals import Refused
from .requests import Asked, Call, asked
from .rest import Api
from .reviews import review
from .store import Store
from .subresources import Subresources
from .watching import Watches

__all__ = ["Server"]

_OPEN = ("/version", "/healthz", "/livez", "/readyz")
_MAX_BODY = 3 * 1024 * 1024
_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")


@attrs.define
class Server:
    """Listens, and answers each request."""

    store: Store
    api: Api
    authority: Authority
    watches: Watches
    faults: Faults
    subresources: Subresources
    context: ssl.SSLContext
    calls: list[Call] = attrs.field(factory=list)
    connections: Connections = attrs.field(factory=Connections)
    port: int = 0
    _runner: web.AppRunner | None = None
    addresses: Sequence[str] = ()

    async def listen(self, addresses: Sequence[str]) -> None:
        """Begin to listen; on the same port again after a ``stop``."""
        app = web.Application(client_max_size=_MAX_BODY + 1)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        for address in addresses:
            site = web.TCPSite(
                runner,
                address,
                self.port,
                ssl_context=self.context,
                reuse_address=True,
            )
            await site.start()
            self.port = runner.addresses[0][1]
        self._runner, self.addresses = runner, addresses

    async def stop(self) -> None:
        """Cut all connections and listen no more."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert runner.server is not None
        for site in list(runner.sites):
            await site.stop()
        self.watches.end()
        self.connections.cut(runner.server)
        await runner.cleanup()

    async def restart(self) -> None:
        """Listen again."""
        if self._runner is None:
            await self.listen(self.addresses)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = {name: request.query[name] for name in request.query}
        call = Call(verb=request.method.lower(), path=request.path_qs)
        self.calls.append(call)
        try:
            response = await self._answer(request, query, call)
        except Refused as refused:
            response = answer(refused.status, refused.code, refused.headers)
        call.code = response.status
        return response

    async def _answer(
        self, request: web.Request, query: Mapping[str, str], call: Call
    ) -> web.StreamResponse:
        wanted = asked(request.method, request.path, query)
        if wanted is not None:
            call.verb, call.resource = wanted.verb, wanted.resource.plural
            call.namespace, call.name = wanted.namespace, wanted.name
            call.subresource = wanted.subresource
        user = self.authority.authenticate(request.headers.get("Authorization"))
        call.user = user.name
        self.faults.check(call)
        if wanted is None:
            return self._other(request, user)
        self.authority.authorize(user, wanted)
        return await self._objects(request, wanted, user)

    async def _objects(self, request: web.Request, wanted: Asked, user: User) -> web.StreamResponse:
        if wanted.resource.plural in _REVIEWS:
            body = await read_object(request, wanted)
            return answer(review(self.authority, user, wanted, body.thing), 201)
        if wanted.resource is PODS and wanted.subresource:
            special = await self.subresources.answer(request, wanted, user)
            if special is not None:
                return special
        if wanted.subresource == "token":
            return await self._token(request, wanted)
        verb = wanted.verb
        if verb == "watch":
            return await self.watches.serve(request, wanted)
        if verb == "get":
            return answer(self.api.get(wanted))
        if verb == "list":
            return answer(self.api.list(wanted))
        if verb == "create" and wanted.name is None:
            body = await read_object(request, wanted)
            return answer(self.api.create(wanted, body.thing), 201, body.headers)
        if verb == "update":
            body = await read_object(request, wanted)
            return answer(self.api.update(wanted, body.thing), 200, body.headers)
        if verb == "patch":
            patch, kind = await read_patch(request, wanted)
            return answer(self.api.patch(wanted, patch, kind))
        if verb == "delete":
            options = await read_options(request)
            return answer(self.api.delete(wanted, options))
        if verb == "deletecollection":
            options = await read_options(request)
            return answer(self.api.delete_collection(wanted, options))
        raise Refused.method_not_allowed()

    async def _token(self, request: web.Request, wanted: Asked) -> web.StreamResponse:
        assert wanted.namespace is not None
        assert wanted.name is not None
        body = await read_object(request, wanted)
        spec = body.thing.get("spec") or {}
        seconds = spec.get("expirationSeconds") or 3600
        token = self.authority.account_token(wanted.namespace, wanted.name, None, seconds)
        body.thing["status"] = {"token": token}
        return answer(body.thing, 201)

    def _other(self, request: web.Request, user: User) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if path in _OPEN:
            found = discovered(path)
            return web.Response(text=found) if isinstance(found, str) else answer(found)
        if user is ANONYMOUS:
            message = (
                f'forbidden: User "system:anonymous" cannot {request.method.lower()} path "{path}"'
            )
            raise Refused(403, "Forbidden", message, {})
        found = discovered(path)
        if found is not None:
            return web.Response(text=found) if isinstance(found, str) else answer(found)
        if path.startswith(("/api/v1/", "/apis/")) and discovered("/".join(path.split("/")[:4])):
            raise Refused.no_such_path()
        if path.startswith("/api/v1/"):
            raise Refused.no_such_path()
        return web.Response(status=404, text="404 page not found\n")


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer in JSON."""
    text = json.dumps(body, separators=(",", ":")).encode() + b"\n"
    told = {"Cache-Control": "no-cache, private", **(headers or {})}
    return web.Response(body=text, status=status, headers=told, content_type="application/json")
