"""The backend for the machine it runs on."""
