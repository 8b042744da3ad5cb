"""What runs on the hosts: Python's own library alone, sent over the connection."""
