"""The tests of the conformance kits, a module each subject."""
