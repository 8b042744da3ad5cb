"""Rings of commands: ``fiber ring run`` and what looks after the rings that it began."""
