"""A job that runs elsewhere: its supervisor, ``python -m fiber.launch.job``, and what it needs."""
