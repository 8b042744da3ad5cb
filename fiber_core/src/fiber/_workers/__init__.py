"""Groups of worker processes: how many there are, and what each is given to do."""
