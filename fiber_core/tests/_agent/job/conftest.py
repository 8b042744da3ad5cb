"""What tests of remote jobs share."""

from far_world import far

__all__ = ["far"]
