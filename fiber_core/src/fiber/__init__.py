"""multiprocessing for clusters: ``import fiber as mp``."""

from fiber._version import __version__

__all__ = ["__version__"]
