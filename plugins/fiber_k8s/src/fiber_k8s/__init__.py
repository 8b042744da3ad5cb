"""The backend for Kubernetes: each job is a pod."""
