"""Programs of users, for the kit: each is copied to an empty folder and run as a script there."""
