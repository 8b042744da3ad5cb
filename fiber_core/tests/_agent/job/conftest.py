"""Fixtures of the tests of remote jobs."""

from remote_world import remote_host

__all__ = ["remote_host"]
