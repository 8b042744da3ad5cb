"""Rings: groups of equal members with ranks, started, watched and ended together."""
