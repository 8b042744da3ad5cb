"""Plays a recording of a real cluster to the emulated one, and tells where the answers differ."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import attrs

from .cluster import Cluster

__all__ = ["RECORDINGS", "Replay", "lines_of"]

#: beside the checkout, where the recordings are kept
RECORDINGS = Path(__file__).parents[4] / "shared" / "k8s-recordings"
_OWN = "openshift-service-ca.crt"
_FAILED = ("status", "reason", "message", "details", "code")


def lines_of(name: str) -> list[dict[str, Any]]:
    """The lines of a recording."""
    text = (RECORDINGS / f"{name}.jsonl").read_text()
    return [_usual(json.loads(line)) for line in text.splitlines()]


def _usual(thing: Any) -> Any:
    """A recorded thing without what the recorded cluster alone has."""
    if isinstance(thing, dict):
        return {name: _usual(value) for name, value in thing.items() if name != "managedFields"}
    if isinstance(thing, list):
        return [
            _usual(item)
            for item in thing
            if not (isinstance(item, dict) and _OWN in str(item.get("configMap")))
        ]
    return thing


@attrs.define
class Replay:
    """One recording against one cluster."""

    cluster: Cluster
    #: recorded users by the names that ``Cluster.token`` understands; None: no credentials
    users: Mapping[str, str | None] = attrs.field(factory=dict)
    #: what of the recording was done before: seconds to wait in a pause, at most
    pause: float = 0.2
    #: recorded words by ours: uids, versions, names that were generated
    words: dict[str, str] = attrs.field(factory=dict)
    _tokens: dict[str, str] = attrs.field(factory=dict)

    def differences(
        self,
        lines: list[dict[str, Any]],
        *,
        skip: Callable[[dict[str, Any]], bool] = lambda _: False,
        before: Mapping[float, Callable[[], object]] | None = None,
    ) -> Iterator[str]:
        """Play all HTTP exchanges, and tell each that is answered otherwise.

        Args:
            lines: of the recording.
            skip: exchanges that are left out.
            before: what to do before the exchange of a time.
        """
        last = 0.0
        for line in lines:
            if line["type"] != "http" or skip(line):
                continue
            gap, last = line["t"] - last, line["t"]
            if gap > 0.3:
                time.sleep(min(gap, self.pause))
            if before is not None and line["t"] in before:
                before[line["t"]]()
            yield from self._exchange(line)

    def _exchange(self, line: dict[str, Any]) -> Iterator[str]:
        request, wanted = line["request"], line["response"]
        status, headers, body = self.send(line.get("user", "admin"), request)
        told = f"{line['t']}: {request['method']} {request['path'][:160]} ({line.get('note', '')})"
        if status != wanted["status"]:
            said = body.get("message") if isinstance(body, dict) else body
            yield f"{told}: {status}, not {wanted['status']}: {said}"
            return
        for name in ("Retry-After", "Warning"):
            told_there = wanted.get("headers", {}).get(name) or []
            there = [told_there] if isinstance(told_there, str) else told_there
            here = [value for key, value in headers if key == name]
            if [self._ours(text) for text in here] != [self._ours(text) for text in there]:
                yield f"{told}: {name} is {here!r}, not {there!r}"
        theirs = wanted.get("body")
        if not isinstance(body, dict) or not isinstance(theirs, dict):
            if status >= 400 and self._ours(str(theirs)) != self._ours(str(body)):
                yield f"{told}: {body!r}, not {theirs!r}"
            return
        self._learn(theirs, body)
        if theirs.get("kind") == "Status" and theirs.get("status") == "Failure":
            for name in _FAILED:
                here, there = body.get(name), theirs.get(name)
                if _cut(json.loads(self._ours(json.dumps(there)))) != _cut(here):
                    yield f"{told}: {name}\n    is  {here}\n    not {there}"
        elif "kind" not in theirs:
            # the recording has only a part of it
            return
        elif theirs["kind"] != body.get("kind"):
            yield f"{told}: a {body.get('kind')}, not a {theirs.get('kind')}"
        else:
            yield from (f"{told}: {what}" for what in missing(theirs, body))

    def send(self, user: str, request: dict[str, Any]) -> tuple[int, list[tuple[str, str]], Any]:
        """Send one recorded request."""
        host, port = self.cluster.url.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=str(self.cluster.authority_file))
        headers = {k: v for k, v in (request.get("headers") or {}).items() if k != "Authorization"}
        token = self._token(user)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = request.get("body")
        data = body.encode() if isinstance(body, str) else None
        if body is not None and data is None:
            data = self._ours(json.dumps(body)).encode()
        elif data is not None:
            data = self._ours(data.decode()).encode()
        connection = HTTPSConnection(host, int(port), context=context, timeout=30)
        try:
            connection.request(request["method"], self._ours(request["path"]), data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = text and answer.headers.get_content_type() == "application/json"
            return answer.status, answer.getheaders(), json.loads(text) if is_json else text
        finally:
            connection.close()

    def _token(self, user: str) -> str | None:
        if user not in self._tokens:
            name = self.users.get(user, "admin" if user == "admin" else None)
            if user == "bad-token":
                self._tokens[user] = "nobody-issued-this"
            else:
                self._tokens[user] = self.cluster.token(name) if name is not None else ""
        return self._tokens[user]

    def _ours(self, text: str) -> str:
        if not self.words:
            return text
        pattern = "|".join(map(re.escape, sorted(self.words, key=len, reverse=True)))
        return re.sub(rf"(?<![\w-])({pattern})(?![\w-])", lambda m: self.words[m[1]], text)

    def _learn(self, theirs: Any, ours: Any) -> None:
        if isinstance(theirs, dict) and isinstance(ours, dict):
            for name in ("uid", "resourceVersion"):
                if isinstance(theirs.get(name), str) and isinstance(ours.get(name), str):
                    self.words[theirs[name]] = ours[name]
            if theirs.get("generateName") and "name" in theirs and "name" in ours:
                self.words[theirs["name"]] = ours["name"]
            if str(theirs.get("name")).startswith("kube-api-access-") and "name" in ours:
                self.words[theirs["name"]] = ours["name"]
            for name, value in theirs.items():
                self._learn(value, ours.get(name))
        elif isinstance(theirs, list) and isinstance(ours, list):
            for one, other in zip(theirs, ours, strict=False):
                self._learn(one, other)


def _cut(told: Any) -> Any:
    """What is said, without what chance has made of it."""
    text = json.dumps(told)
    # the difference of two Go structs is cut in the recordings too
    text = re.sub(r"\\n@@.*?(?=(?<!\\)\")", "", text)
    text = re.sub(r"(?<=in record \()\d+(?=\))", "N", text)
    return json.loads(re.sub(r"(?<=Bad_)\w{5}", "xxxxx", text))


#: what a kubelet has told by then is a matter of time
_UNTOLD = frozenset({"managedFields", "status"})


def missing(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Fields that a real object has and ours has not, or the other way round."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if path.endswith(("labels", "annotations", "data", "matchLabels", "nodeSelector")):
            return
        for name in theirs.keys() - ours.keys() - _UNTOLD:
            yield f"{path}.{name} is missing"
        for name in ours.keys() - theirs.keys() - _UNTOLD:
            yield f"{path}.{name} should not be there"
        for name in theirs.keys() & ours.keys() - _UNTOLD:
            yield from missing(theirs[name], ours[name], f"{path}.{name}")
    elif isinstance(theirs, list) and isinstance(ours, list):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
            yield from missing(one, other, f"{path}[{number}]")
    elif type(theirs) is not type(ours) and not path.endswith("continue"):
        yield f"{path} is {ours!r}, not {theirs!r}"
