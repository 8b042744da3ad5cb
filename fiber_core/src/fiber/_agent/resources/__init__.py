"""Devices: who finds them, which are free, what a process that got some is told."""
