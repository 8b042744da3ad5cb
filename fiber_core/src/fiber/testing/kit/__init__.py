"""Tests of the conformance kits, a module for each subject, and their fixtures.

``base`` is common to all kits. The backend kit's fixtures are in ``platform``, with ``driver``, which
runs jobs, and ``master``, which runs user programs; its tests are in the other modules but
``plugins`` and ``provider``, which are kits of their own. The public classes are in
``fiber.testing.backend``, ``plugin`` and ``resource``, which have pytest rewrite the asserts here;
each class of tests stands alone so that a kit is composed of subjects.
"""
