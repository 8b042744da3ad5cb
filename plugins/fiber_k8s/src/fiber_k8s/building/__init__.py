"""Images of folders: built from a Dockerfile, and pushed to a registry or loaded into nodes.

Called by :meth:`fiber_k8s.backend.K8sBackend.prepare_image` before jobs are submitted. Images are
built by a program (docker, podman, buildah), or by the SDK of fiber-docker where none is
installed, and tagged by their content, so that nodes never run an outdated one. The registry is
the one that is set, or else found by the cluster's names in the kubeconfig (GKE, EKS, AKS);
clusters on this host (kind, k3d, minikube, Docker Desktop) load images without a registry. No
credentials are read: engines use their own. No threads, no locks, no request of the cluster.

* ``images``: the steps in order
* ``cluster_registry``: names of the cluster in use, and what follows from them
* ``registries``: decisions; pure
* ``engines``: programs that build, and the registries that they have credentials for
"""
