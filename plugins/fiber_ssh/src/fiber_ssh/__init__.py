"""The backend for machines that one reaches by ssh."""
