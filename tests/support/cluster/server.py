"""The API server: HTTPS, the verbs on objects, watches, and requests that are refused on purpose."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import attrs
from aiohttp import web

from .access import Authority
from .admission import complete
from .deletion import Deletion
from .objects import (
    CUSTOM,
    NAMESPACES,
    REVIEWS,
    Object,
    Refused,
    Resource,
    Store,
    Subscription,
    clone,
    merge,
    of,
    selection,
)
from .streams import Streams

_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
#: seconds; a real one has a minute, and tests are to see some
_BOOKMARK_EVERY = 0.1


@attrs.define(kw_only=True)
class Call:
    """One request that reached the server."""

    verb: str
    query: Mapping[str, str]
    #: what it is about; None for /version and the like
    about: Resource | None = None
    subresource: str = ""
    namespace: str | None = None
    name: str | None = None

    @property
    def resource(self) -> str:
        """Plural of what it is about."""
        return "" if self.about is None else self.about.plural

    @classmethod
    def read(cls, request: web.Request, absent: set[str]) -> Call:
        """The call of a request's line."""
        query = {name: request.query[name] for name in request.query}
        call = cls(verb=request.method.lower(), query=query)
        words = [word for word in request.path.split("/") if word]
        if words[:2] == ["api", "v1"]:
            group, version, words = "", "v1", words[2:]
        elif words[:1] == ["apis"] and len(words) >= 3:
            group, version, words = words[1], words[2], words[3:]
        else:
            return call
        if words[:1] == ["namespaces"] and len(words) > 2:
            call.namespace, words = words[1], words[2:]
        resource = of(words[0], group, version) if 1 <= len(words) <= 3 else None
        if resource is None or resource.group in absent:
            return call
        call.about = resource
        call.name = words[1] if len(words) > 1 else None
        call.subresource = words[2] if len(words) > 2 else ""
        call.verb = _VERBS.get(request.method, call.verb)
        if call.name is None and request.method == "GET":
            call.verb = "watch" if query.get("watch") in {"1", "true"} else "list"
        elif call.name is None and request.method == "DELETE":
            call.verb = "deletecollection"
        return call


_RACE = (
    'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been '
    "modified; please apply your changes to the latest version and try again"
)
_REFUSALS = {
    403: ("Forbidden", "forbidden"),
    409: ("Conflict", _RACE),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred: the emulator was told to fail"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
}


@attrs.define
class Refusal:
    """Requests that are refused; ends with its block, or after its times."""

    code: int
    retry_after: int | None
    matching: Callable[[Call], bool]
    #: how often it refuses; None: until its block ends
    times: int | None
    #: message of the answer; None: the usual one of its code
    message: str | None = None
    #: how often it has refused
    count: int = 0
    _over: bool = False

    def __enter__(self) -> Refusal:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True

    def check(self, call: Call) -> None:
        """Refuse a call that it is about."""
        if self._over or self.count == self.times or not self.matching(call):
            return
        self.count += 1
        reason, message = _REFUSALS[self.code]
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        raise Refused(self.code, reason, self.message or message, headers)


@attrs.define
class Server:
    """Listens, and answers each request."""

    store: Store
    authority: Authority
    deletion: Deletion
    streams: Streams
    context: ssl.SSLContext
    addresses: Sequence[str]
    calls: list[Call] = attrs.field(factory=list)
    refusals: list[Refusal] = attrs.field(factory=list)
    #: what went wrong inside, for whoever closes the cluster
    failures: list[str] = attrs.field(factory=list)
    #: groups of kinds that are not installed
    absent: set[str] = attrs.field(factory=lambda: set(CUSTOM))
    port: int = 0
    _runner: web.AppRunner | None = None
    #: those that were stopped too: a connection whose handshake took longer comes afterwards
    _servers: list[web.Server] = attrs.field(factory=list)
    _watches: dict[Subscription, asyncio.Transport] = attrs.field(factory=dict)

    async def listen(self) -> None:
        """Begin to listen; on the same port again after a ``stop``."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=3 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        assert runner.server is not None
        self._servers.append(runner.server)
        for address in self.addresses:
            site = web.TCPSite(
                runner, address, self.port, ssl_context=self.context, reuse_address=True
            )
            await site.start()
            self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Cut all connections and listen no more."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        loop = asyncio.get_running_loop()
        for site in runner.sites:
            for listener in site._server.sockets:
                loop.remove_reader(listener.fileno())
        # asyncio loses, and does not close, what it has accepted in this round if its server is closed
        await asyncio.sleep(0)
        for site in list(runner.sites):
            await site.stop()
        self.end_watches()
        self.cut_connections()
        await runner.cleanup()

    def cut_connections(self) -> None:
        """Cut all connections whose handshake is over."""
        for handler in [one for server in self._servers for one in server.connections]:
            if handler.transport is not None:
                handler.transport.abort()

    def end_watches(self, *, cut: bool = False) -> None:
        """End all watches as a server does that wants to be asked anew, or cut their connections."""
        for subscription, transport in list(self._watches.items()):
            if cut:
                transport.abort()
            subscription.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call.read(request, self.absent)
        self.calls.append(call)
        try:
            response = await self._answer(request, call)
        except Refused as refused:
            response = _refusal(refused)
        except Exception as error:
            # whoever asked may have gone meanwhile
            has_gone = request.transport is None or request.transport.is_closing()
            if not (has_gone and isinstance(error, ConnectionError)):
                self.failures.append(f"{call}\n{traceback.format_exc()}")
            response = _refusal(Refused(500, "InternalError", "the emulator failed"))
        return response

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        user = self.authority.authenticate(request.headers.get("Authorization", ""))
        for refusal in self.refusals:
            refusal.check(call)
        if call.about is None:
            return self._other(request.path)
        self.authority.authorize(user, call.verb, call)
        if call.subresource == "log":
            return await self.streams.log(request, self._there(call))
        if call.subresource in {"exec", "portforward"}:
            # a stream is a GET by its protocol, and a creation by what it does
            self.authority.authorize(user, "create", call)
            return await self.streams.serve(request, self._there(call), call.subresource)
        if call.verb == "watch":
            return await self._watch(request, call)
        text = await request.read()
        body = json.loads(text) if text.strip() else {}
        if call.verb in {"delete", "deletecollection"} and "gracePeriodSeconds" in call.query:
            body["gracePeriodSeconds"] = int(call.query["gracePeriodSeconds"])
        if call.subresource == "eviction":
            self.deletion.evict(self._there(call), body.get("deleteOptions") or {})
            return _json({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)
        if call.about is REVIEWS:
            return _json(self.authority.review(user, body), 201)
        return self._objects(request, call, body)

    def _objects(self, request: web.Request, call: Call, body: Object) -> web.Response:
        resource = call.about
        assert resource is not None
        if call.verb == "list":
            return _json(self._list(call))
        if call.verb == "create":
            return _json(self.create(resource, call.namespace, body), 201)
        if call.verb == "deletecollection":
            found = self._list(call)
            for item in found["items"]:
                if (there := self.store.same(resource, item)) is not None:
                    self.deletion.delete(resource, there, body)
            return _json(found)
        there = self._there(call)
        if call.verb == "get":
            return _json(there)
        if call.verb == "delete":
            return _json(self.deletion.delete(resource, there, body))
        assert (call.verb, request.content_type) == ("patch", "application/merge-patch+json")
        return _json(self._patch(resource, there, body))

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        """Keep a new object.

        Args:
            resource: its kind.
            namespace: where; None for a kind without namespaces.
            body: the object; it is used up.
        """
        meta = body.setdefault("metadata", {})
        body["kind"], body["apiVersion"] = resource.kind, resource.api_version
        if namespace is not None:
            self.store.need(NAMESPACES, None, namespace)
            meta["namespace"] = namespace
        complete(self.store, resource, body)
        return self.store.create(resource, body)

    def _patch(self, resource: Resource, there: Object, patch: Object) -> Object:
        wanted, old = patch.get("metadata") or {}, there["metadata"]
        uid = wanted.get("uid", old["uid"])
        if uid != old["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['uid']}"
            )
            raise Refused.conflict(resource, old["name"], why)
        return self.store.update(resource, merge(clone(there), patch))

    def _there(self, call: Call) -> Object:
        assert call.about is not None
        assert call.name is not None
        return self.store.need(call.about, call.namespace, call.name)

    def _list(self, call: Call) -> Object:
        """A collection, or the next part of it."""
        resource, query = call.about, call.query
        assert resource is not None
        chosen = selection(query)
        items = [item for item in self.store.list(resource, call.namespace) if chosen(item)]
        meta: Object = {"resourceVersion": str(self.store.version)}
        if "continue" in query:
            start, since = json.loads(base64.b64decode(query["continue"]))
            if since < self.store.floor:
                message = "The provided continue parameter is too old to display a consistent list result."
                raise Refused(410, "Expired", message)
            items = [item for item in items if _key(item) > start]
        limit = int(query.get("limit") or 0)
        if 0 < limit < len(items):
            token = json.dumps([_key(items[limit - 1]), self.store.version])
            meta["continue"] = base64.b64encode(token.encode()).decode()
            items = items[:limit]
        bare = [{k: v for k, v in one.items() if k not in {"kind", "apiVersion"}} for one in items]
        kind = f"{resource.kind}List"
        return {"kind": kind, "apiVersion": resource.api_version, "metadata": meta, "items": bare}

    def _other(self, path: str) -> web.Response:
        """What is at a path without objects."""
        if path == "/version":
            return _json(_VERSION)
        if path.removeprefix("/apis/") in CUSTOM - self.absent:
            return _json({"kind": "APIGroup"})
        return web.Response(status=404, text="404 page not found\n")

    # -- watches

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        assert call.about is not None
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        since = call.query.get("resourceVersion", "")
        try:
            subscription = self.store.subscribe(call.about, since=int(since) if since else None)
        except Refused as refused:
            await response.prepare(request)
            await response.write(_line("ERROR", refused.status))
            return response
        assert request.transport is not None
        self._watches[subscription] = request.transport
        try:
            await response.prepare(request)
            async for line in self._lines(call, subscription):
                await response.write(line)
            await response.write_eof()
        except ConnectionError:
            # the client has gone, or the watch was cut
            pass
        finally:
            del self._watches[subscription]
            subscription.close()
        return response

    async def _lines(self, call: Call, subscription: Subscription) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + float(call.query.get("timeoutSeconds", 1800))
        chosen = selection(call.query)
        while (left := end - loop.time()) > 0:
            try:
                change = await asyncio.wait_for(subscription.get(), min(left, _BOOKMARK_EVERY))
            except asyncio.TimeoutError:
                yield _line("BOOKMARK", self._bookmark(call))
                continue
            if change is None:
                return
            namespace = change.object["metadata"].get("namespace")
            if call.namespace in {None, namespace} and chosen(change.object):
                yield _line(change.type, change.object)

    def _bookmark(self, call: Call) -> Object:
        assert call.about is not None
        meta = {"resourceVersion": str(self.store.version)}
        return {"kind": call.about.kind, "apiVersion": call.about.api_version, "metadata": meta}


def _line(kind: str, thing: Object) -> bytes:
    return json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"


def _key(thing: Object) -> str:
    meta = thing["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(body, separators=(",", ":")) + "\n"
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def _refusal(refused: Refused) -> web.Response:
    if refused.code == 429:
        # whoever limits the flow of requests writes no Status
        text = f"{refused.message}\n"
        return web.Response(status=refused.code, text=text, headers=refused.headers)
    return _json(refused.status, refused.code, refused.headers)
