"""What tests of remote jobs share."""

from remote_world import far

__all__ = ["far"]
