"""Version of fiber-core; the build reads it here."""

__version__ = "0.1.0"
