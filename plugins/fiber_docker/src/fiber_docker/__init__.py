"""The backend for Docker: each job is a container."""
