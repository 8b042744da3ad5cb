"""Checks of ``fiber doctor k8s``: the cluster from here, then from pods as those of jobs are.

Called by :meth:`fiber_k8s.backend.K8sBackend.check`, which yields its checks one after the other.
Each failing check says how to fix it. Later checks are left out where they could only fail for a
reason that was reported. The pods belong to the backend's run, and are killed after their checks.

* ``checks``: the checks in order; cluster, clock, rights, gang scheduler, claims, nodes
* ``access_review``: the rights of an account, by SelfSubjectAccessReviews
* ``pod_checks``: what a pod finds: image, Python, Fiber, rights of its account, TCP between pods; the pod that runs
  the probe, and a listener for it, in a thread ``fiber-doctor`` for that time
* ``probe``: the program in the pod; imports the standard library alone, for the image need not
  have Fiber
"""
