"""Every test of this distribution can have an engine of the tests' own."""

from dockerd import engine

__all__ = ["engine"]
