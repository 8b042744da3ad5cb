"""User programs for the backend kit: each is copied to an empty folder and run as a script there."""
