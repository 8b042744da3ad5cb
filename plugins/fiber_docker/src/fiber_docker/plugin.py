"""Hook implementations; the backend itself is imported when it is chosen."""
