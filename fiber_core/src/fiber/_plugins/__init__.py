"""Plugins: found through entry points, loaded one by one, looked up by name."""
