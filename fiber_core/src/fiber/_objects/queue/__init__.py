"""Queues and pipes: state at their owner, readers and writers everywhere."""
