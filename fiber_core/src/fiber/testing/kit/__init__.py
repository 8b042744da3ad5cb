"""Tests of the conformance kits, a module for each subject, and their fixtures.

``platform`` has what is common to all kits, the fixtures of the backend kit, and the driver that runs its jobs.
That kit is ``backend``; ``core`` runs its user programs; its tests are in the other modules but ``plugins``, which
has the kits for plugins and resource providers. Each class of tests stands alone so that a kit is composed of
subjects. ``fiber.testing`` has pytest rewrite the asserts here, before it imports a kit.
"""

#: subject of each level of the kits; here, so that the command lists them without pytest
LEVELS = {
    1: "metadata and lazy import",
    2: "lifecycle, with out-of-band checks",
    3: "the core API through the backend",
    4: "faults, with detection times",
    5: "scale, with counted engine calls",
    6: "any order of calls",
}
