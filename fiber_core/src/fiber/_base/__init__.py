"""Helpers without any knowledge of Fiber: classes of values, entry points, background threads."""
