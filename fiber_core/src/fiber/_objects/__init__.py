"""Objects that live in the process that made them and are used from any: queues, pipes and their kin."""
