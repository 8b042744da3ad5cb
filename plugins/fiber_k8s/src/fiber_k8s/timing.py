"""Durations of the Kubernetes backend, besides the core's."""

from __future__ import annotations

from fiber._base import values
from fiber.model import Durations


@values.frozen(kw_only=True)
class K8sTiming(Durations):
    """Durations in seconds that the backend waits for."""

    # -- calls of the API server

    #: to connect
    connect: float = 10.0
    #: without an answer, after which a call fails
    answer: float = 30.0
    #: to connect for a stream into a pod, and for the response
    stream_answer: float = 15.0
    #: between two reads of the credentials at least: login plugins are slow
    login: float = 10.0
    #: before the first retry of a call, and before later ones at most
    backoff: float = 0.2
    backoff_most: float = 5.0

    # -- the watch of pods

    #: after which the server ends a stream, so that one which died unseen is opened again
    watch: float = 240.0
    #: without data, after which a stream counts as dead; bookmarks come every minute
    watch_silence: float = 90.0
    #: after which a stream counts as accepted, and backoff begins anew
    watch_accepted: float = 5.0
    #: before the next attempt to open one at most: ends of jobs are reported within two seconds
    #: after an outage, which may take long
    watch_backoff: float = 0.5
    #: for the watch's thread to end
    watch_end: float = 5.0

    # -- pods that start

    #: after a submission, within which the next process is of the same burst
    burst: float = 0.5
    #: for which a list of nodes is reused for pending pods, of which there may be many
    nodes: float = 30.0
    #: that a new node may take
    scale_up: float = 900.0
    #: between two checks whether a node for a pod may come
    scale_up_check: float = 60.0
    #: before the first poll for a container that is not created, and between polls at most
    stuck: float = 15.0
    stuck_most: float = 300.0

    # -- pods that end

    #: between two lists of pods that are being deleted, besides what the watch reports
    deletion_check: float = 1.0
    #: for killed pods to be gone
    deletion: float = 20.0
    #: after a pod's grace period, for its node to confirm its end; the core's own timeout for
    #: unconfirmed ends is longer
    unconfirmed: float = 20.0
    #: for the processes of a pod to be killed from within
    kill: float = 3.0

    # -- streams

    #: without a line, after which a log is opened again, unless the job has ended
    log_silence: float = 30.0
    #: without traffic, after which a ping is sent to a program in a pod
    ping: float = 30.0

    # -- Leases

    #: by which a Lease lasts longer than the core's, after which processes end by themselves
    lease_margin: float = 10.0
    #: before a failed renewal is tried again
    renewal_retry: float = 2.0
    #: after its end, for which a Lease is left in peace: its program may only be slow
    lease_slack: float = 20.0
    #: by which a look may come too late before all is observed anew
    sweep_lateness: float = 2.0
