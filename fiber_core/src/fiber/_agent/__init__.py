"""Processes of jobs on one host: forked, watched, ended and reported by a supervisor."""
