"""Watches: changes as they come, one line of JSON each."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator

import attrs
from aiohttp import web

from .kinds import Resource
from .refusals import Refused
from .requests import Asked
from .selectors import Selection, selection
from .store import Change, Object, Store, Subscription

__all__ = ["Watches"]

_TIMEOUT = (1800, 3600)
_END = "k8s.io/initial-events-end"


@attrs.define
class Watches:
    """All watches that are open."""

    store: Store
    #: seconds between bookmarks
    bookmark_every: float = 60.0
    #: True while each watch is ended as soon as it has begun
    hasty: bool = False
    _open: set[Subscription] = attrs.field(factory=set)
    _transports: set[asyncio.Transport] = attrs.field(factory=set)

    def end(self) -> int:
        """End all watches as a server does that wants to be asked anew; the answer counts them."""
        count = len(self._open)
        for subscription in list(self._open):
            subscription.close()
        return count

    def cut(self) -> int:
        """Cut the connections of all watches; the answer counts them."""
        count = len(self._transports)
        for transport in list(self._transports):
            transport.abort()
        self.end()
        return count

    async def serve(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """Answer a watch until its time is over."""
        chosen = selection(asked.resource, asked.query)
        timeout = _timeout(asked)
        subscription, first = self._begin(asked, chosen)
        if self.hasty and subscription is not None:
            subscription.close()
        response = web.StreamResponse(
            headers={"Cache-Control": "no-cache, private", "Content-Type": "application/json"}
        )
        response.enable_chunked_encoding()
        transport = request.transport
        assert transport is not None
        self._transports.add(transport)
        if subscription is not None:
            self._open.add(subscription)
        try:
            await response.prepare(request)
            for line in first:
                await response.write(line)
            if subscription is not None:
                marks = asked.flag("allowWatchBookmarks")
                async for line in self._lines(asked, chosen, subscription, timeout, marks=marks):
                    await response.write(line)
            await response.write_eof()
        except ConnectionError:
            # the client has gone, or the watch was cut
            pass
        finally:
            self._transports.discard(transport)
            if subscription is not None:
                self._open.discard(subscription)
                subscription.close()
        return response

    def _begin(self, asked: Asked, chosen: Selection) -> tuple[Subscription | None, list[bytes]]:
        resource, query = asked.resource, asked.query
        since = query.get("resourceVersion", "")
        if since and not since.isdigit():
            text = f'resourceVersion: Invalid value: "{since}": strconv.ParseUint: parsing "{since}": invalid syntax'
            raise Refused(500, "", text)
        send = asked.flag("sendInitialEvents")
        self._check_initial(query)
        if since not in {"", "0"} and not send:
            try:
                return self.store.subscribe(resource, since=int(since)), []
            except Refused as refused:
                return None, [_line("ERROR", refused.status)]
        wants_none = query.get("sendInitialEvents") == "false"
        items = [] if wants_none else self.store.list(resource, asked.namespace)
        first = [_line("ADDED", thing) for thing in items if chosen.matches(thing)]
        # without a version a server of today sends the end of the first events as a bookmark
        if asked.flag("allowWatchBookmarks") and (send or not since):
            first.append(_line("BOOKMARK", self._bookmark(resource, end=True)))
        return self.store.subscribe(resource), first

    def _check_initial(self, query: object) -> None:
        assert hasattr(query, "get")
        initial, match = query.get("sendInitialEvents"), query.get("resourceVersionMatch")
        causes = []
        if initial is not None and match != "NotOlderThan":
            causes.append(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting "
                "resourceVersionMatch to NotOlderThan"
            )
        elif initial is None and match is not None:
            causes.append(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch "
                "unless sendInitialEvents is provided"
            )
        if causes:
            text = f'ListOptions.meta.k8s.io "" is invalid: {causes[0]}'
            told = {
                "reason": "FieldValueForbidden",
                "message": causes[0].partition(": ")[2],
                "field": "resourceVersionMatch",
            }
            details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": [told]}
            raise Refused(422, "Invalid", text, details)

    async def _lines(
        self,
        asked: Asked,
        chosen: Selection,
        subscription: Subscription,
        timeout: float,
        *,
        marks: bool,
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        last_mark = max(end - 2.0, loop.time() + 0.1)
        mark = min(loop.time() + self.bookmark_every, last_mark)
        while True:
            left = (min(end, mark) if marks else end) - loop.time()
            change: Change | None = None
            try:
                change = await asyncio.wait_for(subscription.get(), max(left, 0))
            except asyncio.TimeoutError:
                if loop.time() >= end:
                    return
                if marks:
                    yield _line("BOOKMARK", self._bookmark(asked.resource))
                    now = loop.time()
                    mark = min(now + self.bookmark_every, last_mark) if now < last_mark else end + 1
                continue
            if change is None:
                return
            for line in _told(change, asked, chosen):
                yield line

    def _bookmark(self, resource: Resource, *, end: bool = False) -> Object:
        meta: Object = {"resourceVersion": str(self.store.version)}
        if end:
            meta["annotations"] = {_END: "true"}
        return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}


def _told(change: Change, asked: Asked, chosen: Selection) -> Iterator[bytes]:
    """What a change is to one who sees only a part of all."""
    if asked.namespace not in {None, change.object["metadata"].get("namespace", "")}:
        return
    is_in = change.type != "DELETED" and chosen.matches(change.object)
    was_in = change.before is not None and chosen.matches(change.before)
    if is_in:
        yield _line("MODIFIED" if was_in else "ADDED", change.object)
    elif was_in:
        gone = change.object
        if change.type != "DELETED":
            # it is shown as it last matched, under the version at which it left
            assert change.before is not None
            meta = {**change.before["metadata"], "resourceVersion": str(change.version)}
            gone = {**change.before, "metadata": meta}
        yield _line("DELETED", gone)


def _line(kind: str, thing: Object) -> bytes:
    return json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"


def _timeout(asked: Asked) -> float:
    text = asked.query.get("timeoutSeconds", "0")
    if not text.lstrip("-").isdigit():
        message = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise Refused.bad_request(message)
    return float(text) if int(text) > 0 else random.uniform(*_TIMEOUT)
