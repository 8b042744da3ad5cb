"""The end of a run on its hosts: what it ran there has ended before the connections are closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from fiber_ssh.station import Station

__all__ = ["close_stations"]

#: seconds for hosts to end what they run; they do so by themselves when the lease ends
_PATIENCE = 15.0
#: seconds for the last output to come
_OUTPUT = 3.0


def close_stations(stations: Sequence[Station], run_id: str | None) -> None:
    """End the jobs of a run that are not detached; close the connections to all hosts.

    Args:
        stations: the hosts.
        run_id: the run, None where there is none.
    """
    if run_id is not None:
        asked = [
            station.link.ask("release", {"run": run_id})
            for station in stations
            if station.link.is_up
        ]
        deadline = time.monotonic() + _PATIENCE
        for request in asked:
            request.done.wait(max(0.0, deadline - time.monotonic()))
        deadline = time.monotonic() + _OUTPUT
        for station in stations:
            if station.link.is_up:
                station.link.follows.wait_ended(max(0.0, deadline - time.monotonic()))
    threads = [threading.Thread(target=station.close, daemon=True) for station in stations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
