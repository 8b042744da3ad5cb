"""Witness of the platforms that Fiber's own fake backends are: calls and breaks are the platform's."""

from typing import Any

from fiber.testing.witness import HostWitness


class FakeWitness(HostWitness):
    """Processes are seen from outside; calls and breaks are the platform's own."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def calls(self) -> Any:
        return self._platform.calls

    def cut_events(self) -> None:
        self._platform.cut_events()

    def lost_host(self) -> Any:
        self._platform.unconfirmed = 0.1
        return self._platform.lost_host()
