"""Tests of the conformance kits, a module for each subject, and their fixtures.

``platform`` has what is common to all kits. The backend kit is ``backend``; its fixtures are there too, with ``driver``,
which runs jobs, and ``core``, which runs user programs; its tests are in the other modules but ``plugins``, which
has the kits for plugins and resource providers. Each class of tests stands alone so that a kit is composed of
subjects. ``fiber.testing`` has pytest rewrite the asserts here, before it imports a kit.
"""
