"""Check of requests to the page's server, and the headers by which browsers keep other sites out.

A request needs the token: in its address the first time, in a cookie from then on; scripts send it as
``Authorization: Bearer``. What has none is answered 403, and nothing of what there is. The Host header has to name this server, since a page of another
site may have its name lead here (DNS rebinding). Apart from ``server``, to be read alone.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: nothing but what this server sends itself, and nothing inside of another page
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_SENT = tuple((name.encode(), value.encode()) for name, value in _HEADERS.items())


class Guard:
    """ASGI application in front of another one.

    Args:
        app: answers the requests that have the token.
        token: the secret.
        host: that is listened at.
    """

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self._app = app
        self._token = token.encode()
        self._is_loopback = is_loopback(host)
        self._names = {"localhost"}
        if not self._is_loopback:
            self._names |= {host.lower(), os.uname().nodename.lower()}
        # cookies do not tell ports apart, and there may be another dashboard
        self._cookie = f"fiber-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.requests import Request
        from starlette.responses import Response

        request = Request(scope)
        given = request.query_params.get("token", "")
        scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
        token = (
            given
            or (sent_token if scheme.lower() == "bearer" else "")
            or request.cookies.get(self._cookie, "")
        )
        if not self._names_us(request.headers.getlist("host")) or not self._is_token(token):
            await Response(status_code=403, headers=_HEADERS)(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SENT]
                if given:
                    cookie = f"{self._cookie}={given}; HttpOnly; Path=/; SameSite=Strict"
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self._app(scope, receive, sent)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _names_us(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name, _, port = hosts[0].lower().rpartition(":")
        if not port.isdigit() or not name:
            name = hosts[0].lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        # no name that leads elsewhere later
        return address.is_loopback or not self._is_loopback


def is_loopback(host: str) -> bool:
    """True for an address that other hosts cannot reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
