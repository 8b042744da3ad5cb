"""The kits on plugins as they are installed: what ``fiber plugin check`` has pytest run."""
