"""Plugins: found through entry points of the group ``fiber``, loaded one by one, looked up by name.

================ ====================================================================
manager          loads plugins and calls their hooks; registries of what they offer
backend_choice   which backend a program uses, and how it is made
defaults         the core's own implementations of hooks, called last
================ ====================================================================

A plugin is a module or object with implementations of :mod:`fiber.hookspecs`, managed by pluggy. It
may offer backends, resource providers and sub-commands; each kind has a registry by name, filled by
calling the hook once, on first use.

Invariants:

- A plugin that cannot be imported or registered, or whose hook raises or returns an invalid value,
  is recorded in ``Plugins.broken`` and logged once; it harms no other plugin.
- A name offered by two distributions is usable from neither, and the error names both, so that the
  order of installation decides nothing. Only the core keeps its own names.
- Unknown, not installed, and made for another API version are three errors, each with its fix.

One lock guards the registries; loading is done by one thread before the object is shared.
Called by ``_runtime``, ``_launch``, ``_ring``, ``cli`` and ``testing``; calls ``_config`` and
``_base``.
"""
