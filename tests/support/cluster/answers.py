"""Answers over HTTP: objects, refusals and warnings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from .refusals import Refused

__all__ = ["answer", "refusal", "warned"]


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer in JSON."""
    text = json.dumps(body, separators=(",", ":")).encode() + b"\n"
    told = {"Cache-Control": "no-cache, private", **(headers or {})}
    return web.Response(body=text, status=status, headers=told, content_type="application/json")


def refusal(refused: Refused) -> web.Response:
    """The answer that refuses."""
    if refused.plain:
        text = f"{refused.message}\n"
        return web.Response(status=refused.code, text=text, headers=refused.headers)
    return answer(refused.status, refused.code, refused.headers)


def warned(response: web.Response, warnings: Iterable[str]) -> web.Response:
    """An answer that warns."""
    for text in warnings:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response
