"""Starts the supervisor of a job: ``python -m fiber.launch.job``."""

import os

from fiber.launch.job.main import main

if __name__ == "__main__":
    # nothing is left to be done, and what nng has for the interpreter's end may take long
    os._exit(main())
