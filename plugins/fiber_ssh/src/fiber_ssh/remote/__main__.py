"""Runs what the archive is for."""

from fiber_ssh.remote.main import main

main()
