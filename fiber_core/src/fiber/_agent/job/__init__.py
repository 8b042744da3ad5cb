"""A job that runs elsewhere: its supervisor, ``python -m fiber._agent.job``, and what it needs."""
