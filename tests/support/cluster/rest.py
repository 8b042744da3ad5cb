"""The verbs on objects: create, get, list, update, patch and delete, as the API server does them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import attrs

from . import defaults, patches
from .admission import Admission
from .bodies import checked
from .deletion import Deletion
from .kinds import NAMESPACES, PODS, Resource
from .refusals import Refused
from .requests import Asked
from .selectors import selection
from .store import Object, Store, clone
from .updates import check_update
from .validation import check

__all__ = ["Api"]

_NAME_LENGTH = 63
#: objects whose spec counts its changes
_COUNTED = ("deployments", "jobs", "pods", "poddisruptionbudgets", "replicasets", "statefulsets")


@attrs.define
class Api:
    """All verbs on all resources. The store's loop alone may use it."""

    store: Store
    admission: Admission
    deletion: Deletion

    def create(self, asked: Asked, body: Object) -> Object:
        """Keep a new object.

        Args:
            asked: where.
            body: the object; it is used up.
        """
        resource = asked.resource
        self._placed(asked, body)
        meta = body["metadata"]
        if meta.get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise Refused(500, "", message)
        for name in ("uid", "resourceVersion", "deletionTimestamp", "selfLink", "generation"):
            meta.pop(name, None)
        for name in ("deletionGracePeriodSeconds", "creationTimestamp", "managedFields"):
            meta.pop(name, None)
        if not meta.get("name") and meta.get("generateName"):
            stem = meta["generateName"][: _NAME_LENGTH - 5]
            meta["name"] = stem + defaults.suffix()
            while self.store.get(resource, asked.namespace, meta["name"]) is not None:
                meta["name"] = stem + defaults.suffix()
        if asked.namespace is not None:
            self._lives(asked, meta.get("name", ""))
        if resource is PODS:
            body["status"] = {"phase": "Pending"}
        elif resource.status and resource.plural not in {"nodes", "namespaces"}:
            body.pop("status", None)
        defaults.fill(resource, body)
        self.admission.mutate(resource, body)
        if resource is PODS:
            body["status"]["qosClass"] = defaults.quality(body["spec"])
        check(resource, body, new=True)
        if resource.plural in _COUNTED:
            meta["generation"] = 1
        settled = self.admission.validate(resource, body)
        if asked.dry:
            there = self.store.get(resource, meta.get("namespace"), meta["name"])
            if there is not None:
                raise Refused.already_exists(resource, meta["name"])
            meta["uid"] = "00000000-0000-0000-0000-000000000000"
            return body
        made = self.store.create(resource, body)
        settled()
        return made

    def get(self, asked: Asked) -> Object:
        """One object."""
        assert asked.name is not None
        self._version(asked)
        return self.store.need(asked.resource, asked.namespace, asked.name)

    def list(self, asked: Asked) -> Object:
        """A collection, or the next part of it."""
        resource, query = asked.resource, asked.query
        version = self._version(asked)
        if query.get("resourceVersionMatch") == "Exact" and version < self.store.floor:
            message = "The resourceVersion for the provided list is too old."
            raise Refused(410, "Expired", message)
        chosen = selection(resource, query)
        items = [
            thing for thing in self.store.list(resource, asked.namespace) if chosen.matches(thing)
        ]
        meta: Object = {"resourceVersion": str(self.store.version)}
        limit = int(query.get("limit") or 0)
        if query.get("continue"):
            start, since = _read_token(query["continue"])
            if 0 <= since < self.store.floor:
                raise self._stale_token(start)
            items = [thing for thing in items if _key(thing) > start]
            if since >= 0:
                meta["resourceVersion"] = str(since)
        if 0 < limit < len(items):
            meta["continue"] = _token(_key(items[limit - 1]), int(meta["resourceVersion"]))
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                meta["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        bare = [
            {k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in items
        ]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": meta,
            "items": bare,
        }

    def update(self, asked: Asked, body: Object) -> Object:
        """Replace an object, or its status alone."""
        self._placed(asked, body)
        meta = body["metadata"]
        if meta.get("name") != asked.name:
            message = (
                f"the name of the object ({meta.get('name', '')}) does not match the name on the "
                f"URL ({asked.name})"
            )
            raise Refused.bad_request(message)
        return self._change(asked, lambda _: body)

    def patch(self, asked: Asked, patch: Any, content_type: str, warnings: list[str]) -> Object:
        """Change parts of an object.

        Args:
            asked: of which object.
            patch: as it was sent.
            content_type: which kind of patch it is.
            warnings: what the answer warns of is added here.
        """

        if content_type == "application/apply-patch+yaml":
            return self._apply(asked, patch, warnings)

        def change(there: Object) -> Object:
            new = patches.apply(there, patch, content_type)
            warnings.extend(checked(asked, new, []))
            return new

        return self._change(asked, change)

    def delete(self, asked: Asked, options: Object) -> Object:
        """Delete an object, now or gracefully."""
        assert asked.name is not None
        there = self.store.need(asked.resource, asked.namespace, asked.name)
        return self.deletion.delete(asked.resource, there, options, dry=asked.dry)

    def delete_collection(self, asked: Asked, options: Object) -> Object:
        """Delete all that a query selects; the answer is the list as it was."""
        found = self.list(attrs.evolve(asked, verb="list"))
        for item in found["items"]:
            meta = item["metadata"]
            there = self.store.get(asked.resource, meta.get("namespace"), meta["name"])
            if there is not None:
                self.deletion.delete(asked.resource, there, options, dry=asked.dry)
        return found

    def _apply(self, asked: Asked, patch: Any, warnings: list[str]) -> Object:
        """Create an object or merge it; who manages which field is not kept."""
        if not asked.query.get("fieldManager"):
            text = "Required value: is required for apply patch"
            message = f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {text}'
            cause = {"reason": "FieldValueRequired", "message": text, "field": "fieldManager"}
            details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]}
            raise Refused(422, "Invalid", message, details)
        assert asked.name is not None
        if self.store.get(asked.resource, asked.namespace, asked.name) is None:
            thing = clone(patch)
            warnings.extend(checked(asked, thing, []))
            return self.create(asked, thing)
        kind = "application/strategic-merge-patch+json"
        return self.patch(asked, patch, kind, warnings)

    def _change(self, asked: Asked, change: Callable[[Object], Object]) -> Object:
        assert asked.name is not None
        resource = asked.resource
        there = self.store.need(resource, asked.namespace, asked.name)
        new = change(there)
        meta, old = new.setdefault("metadata", {}), there["metadata"]
        wanted = meta.get("resourceVersion")
        if meta.get("uid", old["uid"]) != old["uid"]:
            raise Refused.conflict(resource, asked.name, self._other_uid(resource, meta, old))
        if wanted and wanted not in {"0", old["resourceVersion"]}:
            raise Refused.conflict(resource, asked.name)
        kept = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
        for name in (*kept, "generation", "namespace", "resourceVersion"):
            meta.pop(name, None)
            if name in old:
                meta[name] = old[name]
        meta["name"] = meta.get("name", asked.name)
        new["kind"], new["apiVersion"] = resource.kind, resource.api_version
        new.pop("managedFields", None)
        if asked.subresource == "status":
            whole = clone(there)
            whole["status"] = new.get("status") or {}
            new = whole
        else:
            if resource.status and "status" in there:
                new["status"] = clone(there["status"])
            defaults.fill(resource, new)
            if resource is PODS:
                # the one plugin of admission that also completes updates
                defaults.tolerations(new["spec"])
            if resource is NAMESPACES:
                new["status"] = clone(there["status"])
            check(resource, new)
            check_update(resource, new, there, asked.subresource)
            if resource.plural in _COUNTED and new.get("spec") != there.get("spec"):
                meta["generation"] = old.get("generation", 1) + 1
        if asked.dry:
            return new
        made = self.store.update(resource, new)
        return self.deletion.finish(resource, made)

    def _other_uid(self, resource: Resource, meta: Object, old: Object) -> str:
        key = "/".join(filter(None, (resource.plural, old.get("namespace"), old["name"])))
        return (
            f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: UID in precondition: {meta['uid']}, UID in "
            f"object meta: {old['uid']}"
        )

    def _placed(self, asked: Asked, body: Object) -> None:
        """Give an object its namespace, kind and version."""
        meta = body.get("metadata")
        if meta is None:
            meta = body["metadata"] = {}
        if asked.namespace is not None:
            if meta.setdefault("namespace", asked.namespace) != asked.namespace:
                raise Refused.bad_request(
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
        else:
            meta.pop("namespace", None)
        body["kind"], body["apiVersion"] = asked.resource.kind, asked.resource.api_version

    def _lives(self, asked: Asked, name: str) -> None:
        """Refuse what would be made in a namespace that is not there, or is going away."""
        assert asked.namespace is not None
        namespace = self.store.need(NAMESPACES, None, asked.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            why = (
                f"unable to create new content in namespace {asked.namespace} because it is "
                "being terminated"
            )
            refused = Refused.forbidden(asked.resource, name, why)
            field = "metadata.namespace"
            message = f"namespace {asked.namespace} is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": message, "field": field}
            assert refused.details is not None
            refused.details["causes"] = [cause]
            raise refused

    def _version(self, asked: Asked) -> int:
        """The version that a reading asks for, or 0."""
        text = asked.query.get("resourceVersion") or "0"
        if not text.isdigit():
            why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
            raise Refused.bad_request(f"invalid resource version: resourceVersion: {why}")
        if int(text) <= self.store.version:
            return int(text)
        message = f"Timeout: Too large resource version: {text}, current: {self.store.version}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        details = {"causes": [cause], "retryAfterSeconds": 1}
        raise Refused(504, "Timeout", message, details, {"Retry-After": "1"})

    def _stale_token(self, start: str) -> Refused:
        message = (
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter, or use the continue token in "
            "this response to retrieve the remainder of the results. Continuing with the provided "
            "token results in an inconsistent list - objects that were created, modified, or "
            "deleted between the time the first chunk was returned and now may show up in the list."
        )
        refused = Refused(410, "Expired", message)
        refused.token = _token(start, -1)
        return refused


def _key(thing: Object) -> str:
    meta = thing["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def _token(start: str, version: int) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{start}\0"})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[str, int]:
    try:
        told = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return told["start"].rstrip("\0"), told["rv"]
    except (ValueError, KeyError, TypeError) as error:
        why = "invalid character '\\u0081' looking for beginning of value"
        message = f"invalid continue token: continue key is not valid: {why}"
        raise Refused.bad_request(message) from error
