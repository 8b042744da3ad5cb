"""The lines that a pod's container wrote, followed over breaks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from fiber.exceptions import BackendError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.logplace import LogPlace
from fiber_k8s.manifest import CONTAINER
from fiber_k8s.pacing import backoff

__all__ = ["follow", "last_lines"]

log = logging.getLogger("fiber")

#: seconds without a word after which it is asked whether the job still runs
_SILENCE = 30.0
#: what a node says in place of a log that it has removed, or while it removes the container
_NO_LOG = re.compile(rb"unable to retrieve container logs for [\w.+-]+://[0-9a-f]+")


def last_lines(client: Client, pod: str, count: int, container: str = CONTAINER) -> tuple[str, ...]:
    """The last lines of a pod; none where they cannot be had."""
    with contextlib.suppress(BackendError):
        return tuple(_lines(client, pod, {"tailLines": count, "container": container}))
    return ()


def follow(
    client: Client,
    pod: str,
    *,
    tail: int | None = None,
    to_the_end: bool = False,
    has_ended: Callable[[], bool] = lambda: True,
) -> Iterator[str]:
    """Lines as they come; where it begins is settled by the call.

    Args:
        client: the cluster.
        pod: its name.
        tail: only the last so many of those there are.
        to_the_end: go on until the container has ended.
        has_ended: whether it has.
    """
    if not to_the_end:
        return _lines(client, pod, {"tailLines": tail})
    place = LogPlace()
    last: list[str] = []
    if tail is not None:
        # those there are, and where they end: what comes next is followed from there
        stamped = _lines(client, pod, {"timestamps": "true", "tailLines": max(1, tail)})
        last = list(place.new(stamped, is_tail=True))
        last = last[len(last) - tail :] if tail else []
    return itertools.chain(last, _go_on(client, pod, place, has_ended))


def _go_on(
    client: Client, pod: str, place: LogPlace, has_ended: Callable[[], bool]
) -> Iterator[str]:
    query: dict[str, Any] = {"timestamps": "true", "follow": "true"}
    waits = backoff(tries=None)
    while True:
        # before it is read: what ended before then has been read to its end
        ended = has_ended()
        try:
            for line in place.new(_lines(client, pod, {**query, **place.since()})):
                waits = backoff(tries=None)
                yield line
        except ApiError as error:
            if error.status == 404 or ended:
                return
        except BackendError:
            # the cluster is away: it is gone on with where it broke
            ended = False
        if ended:
            return
        # no event tells that there is more to read
        time.sleep(next(waits))


def _lines(client: Client, pod: str, query: dict[str, Any]) -> Iterator[str]:
    """Whole lines; a read that takes too long ends it, so that nobody waits for a dead stream."""
    path = client.path("pods", pod, "log")
    response = client.open(
        "GET",
        path,
        f"read the log of {pod}",
        query={"container": CONTAINER, **query},
        timeout=_SILENCE,
    )
    rest = b""
    try:
        for chunk in response.stream(1 << 16, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if _NO_LOG.fullmatch(rest):
            # no line of the container's, though the answer says nothing else
            level = logging.DEBUG if "follow" in query else logging.WARNING
            log.log(level, "fiber: the log of %s is gone: %s", pod, rest.decode())
        elif rest:
            yield rest.decode("utf-8", "replace")
            rest = b""
    except (urllib3.exceptions.HTTPError, OSError) as failure:
        msg = f"the log of {pod} broke off: {failure}"
        raise BackendError(msg) from failure
    finally:
        with contextlib.suppress(Exception):
            # what closing raises differs with the transport, and it is over in any case
            response.close()
