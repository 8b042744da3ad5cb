"""Connections between the processes of a run; the only importer of pynng."""
