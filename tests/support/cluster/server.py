"""The API server: HTTPS on loopback, authentication, authorization, and the way to each verb."""

from __future__ import annotations

import ssl
import traceback
from collections.abc import Mapping, Sequence

import attrs
from aiohttp import web

from .answers import answer, refusal, warned
from .authority import ANONYMOUS, Authority, User
from .bodies import read_object, read_options, read_patch
from .cautions import cautions
from .connections import Connections
from .discovery import discovered
from .faults import Faults
from .kinds import CUSTOM, PODS
from .refusals import Refused
from .requests import Asked, Call, asked
from .rest import Api
from .reviews import review
from .store import Store
from .subresources import Subresources
from .watching import Watches

__all__ = ["Server"]

_OPEN = ("/version", "/healthz", "/livez", "/readyz")
_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
_NOT_ACCEPTABLE = (
    f"406: Not Acceptable\n\nAvailable representations: {_TYPES}, "
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
)
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
    #: what went wrong inside, for whoever closes the cluster
    failures: list[str] = attrs.field(factory=list)
    #: groups of kinds that are not installed
    absent: set[str] = attrs.field(factory=lambda: set(CUSTOM))
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
            response = refusal(refused)
        except Exception as error:
            # whoever asked may have gone meanwhile
            has_gone = request.transport is None or request.transport.is_closing()
            if not (has_gone and isinstance(error, ConnectionError)):
                told = f"{request.method} {request.path_qs}\n{traceback.format_exc()}"
                self.failures.append(told)
            text = "Internal error occurred: the emulator failed"
            response = answer(Refused(500, "InternalError", text).status, 500)
        call.code = response.status
        return response

    async def _answer(
        self, request: web.Request, query: Mapping[str, str], call: Call
    ) -> web.StreamResponse:
        wanted = asked(request.method, request.path, query)
        if wanted is not None and wanted.resource.group in self.absent:
            wanted = None
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
        self._acceptable(request)
        if verb == "watch":
            return await self.watches.serve(request, wanted)
        if verb == "get":
            return answer(self.api.get(wanted))
        if verb == "list":
            return answer(self.api.list(wanted))
        if verb == "create" and wanted.name is None:
            body = await read_object(request, wanted)
            made = self.api.create(wanted, body.thing)
            return warned(answer(made, 201), [*body.warnings, *cautions(wanted.resource, made)])
        if verb == "update":
            body = await read_object(request, wanted)
            return warned(answer(self.api.update(wanted, body.thing)), body.warnings)
        if verb == "patch":
            patch, kind = await read_patch(request, wanted)
            warnings: list[str] = []
            assert wanted.name is not None
            there = self.store.get(wanted.resource, wanted.namespace, wanted.name)
            made = self.api.patch(wanted, patch, kind, warnings)
            # an apply may have created it
            return warned(answer(made, 201 if there is None else 200), warnings)
        if verb == "delete":
            options = await read_options(request)
            return answer(self.api.delete(wanted, options))
        if verb == "deletecollection":
            options = await read_options(request)
            return answer(self.api.delete_collection(wanted, options))
        raise Refused.method_not_allowed()

    def _acceptable(self, request: web.Request) -> None:
        accepted = request.headers.get("Accept", "*/*")
        if not any(
            word in accepted for word in ("json", "*/*", "yaml", "protobuf", "application/*")
        ):
            raise Refused(406, "NotAcceptable", _NOT_ACCEPTABLE, {})

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
        found = discovered(path, self.absent)
        if found is not None:
            return web.Response(text=found) if isinstance(found, str) else answer(found)
        if path.startswith(("/api/v1/", "/apis/")) and discovered(
            "/".join(path.split("/")[:4]), self.absent
        ):
            raise Refused.no_such_path()
        if path.startswith("/api/v1/"):
            raise Refused.no_such_path()
        return web.Response(status=404, text="404 page not found\n")
