"""Speed of Fiber beside ``multiprocessing`` in one run: ``python -m benchmarks``."""
