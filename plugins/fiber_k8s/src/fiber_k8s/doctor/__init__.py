"""What ``fiber doctor k8s`` finds out: about the cluster, and from inside a pod of its own."""
