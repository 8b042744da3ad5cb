"""The state of one process of a run, made on first use and closed in order."""
