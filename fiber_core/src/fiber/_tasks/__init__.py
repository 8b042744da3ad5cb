"""The way of a task: from the pool to a worker and back."""
