"""The kits on installed plugins: the tests that ``fiber plugin check`` runs by pytest."""
