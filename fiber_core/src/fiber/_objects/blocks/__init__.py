"""Values that one process made and any number of processes read."""
