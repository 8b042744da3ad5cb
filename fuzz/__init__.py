"""Fuzz targets of every parser that a stranger or a worker feeds: ``python -m fuzz``."""
