"""Core events: what the scheduler, the kubelet and others tell of an object."""

from __future__ import annotations

import datetime as dt
import secrets

import attrs

from .kinds import EVENTS, NAMESPACES
from .store import Object, Store, clone, now

__all__ = ["Happenings"]


_ACTIONS = {"Scheduled": "Binding", "Preempted": "Preempting"}


@attrs.define
class Happenings:
    """Writes events; one that repeats counts up."""

    store: Store
    _seen: dict[tuple[str, str, str, str], str] = attrs.field(factory=dict)

    def tell(
        self,
        thing: Object,
        reason: str,
        message: str,
        *,
        by: str = "kubelet",
        node: str = "",
        container: str | None = None,
        warning: bool = False,
    ) -> None:
        """Record an event.

        Args:
            thing: what it is about.
            reason: one word.
            message: a sentence.
            by: the component that tells it.
            node: where that component runs.
            container: of a pod, which container it is about.
            warning: whether something is wrong.
        """
        meta = thing["metadata"]
        namespace = meta.get("namespace", "default")
        place = self.store.get(NAMESPACES, None, namespace)
        if place is None or "deletionTimestamp" in place["metadata"]:
            return
        key = (meta["uid"], reason, message, container or "")
        if key in self._seen:
            there = self.store.get(EVENTS, namespace, self._seen[key])
            if there is not None:
                self._again(there)
                return
        about = {
            "kind": thing["kind"],
            "namespace": namespace,
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": thing["apiVersion"],
            "resourceVersion": meta["resourceVersion"],
        }
        if container is not None:
            about["fieldPath"] = f"spec.containers{{{container}}}"
        name = f"{meta['name']}.{secrets.token_hex(8)}"
        event: Object = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
        }
        if by.endswith("scheduler"):
            moment = dt.datetime.now(dt.timezone.utc)
            event |= {
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
                "eventTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "action": _ACTIONS.get(reason, "Scheduling"),
                "reportingComponent": by,
                "reportingInstance": f"{by}-1",
            }
        else:
            event |= {
                "source": {"component": by, "host": node} if node else {"component": by},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
                "eventTime": None,
                "reportingComponent": by,
                "reportingInstance": node,
            }
        self._seen[key] = name
        self.store.create(EVENTS, event)

    def _again(self, event: Object) -> None:
        new = clone(event)
        if "count" in new:
            new["count"] += 1
            new["lastTimestamp"] = now()
        else:
            moment = dt.datetime.now(dt.timezone.utc)
            series = new.setdefault("series", {"count": 1})
            series["count"] += 1
            series["lastObservedTime"] = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.store.update(EVENTS, new)
