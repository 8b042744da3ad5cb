"""Starts the supervisor of a job: ``python -m fiber._agent.job``."""

import os

from fiber._agent.job.server import main

if __name__ == "__main__":
    # nothing is left to be done, and what nng has for the interpreter's end may take long
    os._exit(main())
