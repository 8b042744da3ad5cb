"""RBAC rules that Fiber needs in a namespace, and the manifests that grant them; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence

import attrs


@attrs.frozen(kw_only=True)
class Rule:
    """A rule of a Role: verbs of one resource, with the reason for people."""

    #: API group; "" for the core group
    group: str = ""
    #: resource in plural; with a subresource, ``pods/log``
    resource: str
    #: verbs of the API
    verbs: tuple[str, ...]
    #: reason, a line for people
    why: str
    #: False where programs run without it
    needed: bool = True
    #: option of ``fiber k8s rbac`` that grants it; None for one that is granted always
    option: str | None = None


@attrs.frozen
class Right:
    """Right: one verb of a rule."""

    rule: Rule
    verb: str

    def __str__(self) -> str:
        group = f".{self.rule.group}" if self.rule.group else ""
        return f"{self.verb} {self.rule.resource}{group}"


#: rules of a namespace's Role
RULES = (
    Rule(
        resource="pods",
        verbs=("create", "get", "list", "watch", "delete", "deletecollection"),
        why="each job is a pod",
    ),
    Rule(
        resource="pods/log", verbs=("get",), why="output of jobs, the last lines of those that died"
    ),
    Rule(
        resource="secrets",
        verbs=("create", "delete"),
        why="the key of a run; none is read or listed",
    ),
    Rule(
        group="coordination.k8s.io",
        resource="leases",
        verbs=("create", "list", "patch", "delete"),
        why="a Lease owns what a run has, so that nothing is left when its program is killed",
    ),
    Rule(
        resource="pods",
        verbs=("patch",),
        why="keeping jobs where somebody deletes the Lease that they belong to, and failed ones",
        needed=False,
    ),
    Rule(
        resource="events",
        verbs=("list",),
        why="telling why a pod waits: an autoscaler at work, a volume that is missing",
        needed=False,
    ),
    Rule(
        resource="pods/exec",
        verbs=("create", "get"),
        why="fiber exec and fiber cp; kill() at once after terminate()",
        needed=False,
        option="--exec",
    ),
    Rule(
        resource="pods/portforward",
        verbs=("create", "get"),
        why="programs outside the cluster whose jobs are inside",
        needed=False,
        option="--port-forward",
    ),
    Rule(
        resource="persistentvolumeclaims",
        verbs=("list",),
        why="what fiber doctor says of claims",
        needed=False,
    ),
)
#: rule of a ClusterRole; optional
NODES = Rule(
    resource="nodes",
    verbs=("list",),
    why="how many devices, CPUs and how much memory there are",
    needed=False,
)
#: service account that is granted the rights; used for programs where it exists
ACCOUNT = "fiber"
#: service account of pods that name none
DEFAULT_ACCOUNT = "default"
_WHERE = re.compile(r'in the namespace "([^"]+)"')
_REFUSED = re.compile(
    r'User "(?P<user>(?:system:serviceaccount:[^:"]+:(?P<account>[^"]+))|[^"]+)" cannot'
    r'(?: \w+ resource "(?P<resource>[^"]+)")?'
)
#: API groups of gang schedulers, by the setting ``gang``
GANG_GROUPS = {
    "kueue": "kueue.x-k8s.io",
    "volcano": "scheduling.volcano.sh",
    "scheduler-plugins": "scheduling.x-k8s.io",
}


def rights(rules: Iterable[Rule] = RULES) -> list[Right]:
    """Return one right for each verb of each rule."""
    return [Right(rule, verb) for rule in rules for verb in rule.verbs]


def gang_rules(gang: str) -> tuple[Rule, ...]:
    """Return the rules for groups of jobs, besides ``RULES``."""
    group = GANG_GROUPS.get(gang)
    if group is None or gang == "kueue":
        # which has no PodGroup objects
        return ()
    why = f"groups that start together, by {gang}"
    return (Rule(group=group, resource="podgroups", verbs=("create", "delete"), why=why),)


def grant(refusal: str) -> str:
    """Return the command that grants what the cluster refused."""
    where = _WHERE.search(refusal)
    command = "fiber k8s rbac" if where is None else f"fiber k8s rbac --namespace {where[1]}"
    subject = _REFUSED.search(refusal)
    if subject is None:
        return f"{command} | kubectl apply -f -"
    for rule in RULES:
        if rule.option is not None and rule.resource == subject["resource"]:
            command += f" {rule.option}"
    if subject["account"] is None:
        return f"{command} --user {shlex.quote(subject['user'])} | kubectl apply -f -"
    if subject["account"] == DEFAULT_ACCOUNT:
        # whatever else runs in the namespace would have the rights as well
        return (
            f"{command} | kubectl apply -f -, and have the program's pod use the account {ACCOUNT}: "
            f"fiber run --service-account {ACCOUNT}, or serviceAccountName: {ACCOUNT} in a pod of yours"
        )
    return f"{command} --service-account {subject['account']} | kubectl apply -f -"


def manifests(
    namespace: str,
    name: str = ACCOUNT,
    *,
    users: Sequence[str] = (),
    gang: str = "none",
    nodes: bool = False,
    options: Collection[str] = (),
) -> str:
    """Return the YAML of a service account with the rights, for ``kubectl apply``."""
    granted = [rule for rule in RULES if rule.option is None or rule.option in options]
    where = {"name": name, "namespace": namespace}
    documents = [
        _document("v1", "ServiceAccount", where),
        _document("rbac.authorization.k8s.io/v1", "Role", where)
        + _rules((*granted, *gang_rules(gang))),
        _document("rbac.authorization.k8s.io/v1", "RoleBinding", where)
        + _binding("Role", name, namespace, users),
    ]
    if nodes:
        # cluster-wide names: unique by the namespace
        wide = {"name": f"{name}-nodes-{namespace}"}
        documents += [
            _document("rbac.authorization.k8s.io/v1", "ClusterRole", wide) + _rules((NODES,)),
            _document("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", wide)
            + _binding("ClusterRole", wide["name"], namespace, users, name),
        ]
    return "---\n".join(documents)


def _document(api: str, kind: str, metadata: dict[str, str]) -> str:
    lines = [f"apiVersion: {api}", f"kind: {kind}", "metadata:"]
    lines += [f"  {key}: {_text(value)}" for key, value in metadata.items()]
    lines += ["  labels:", "    app.kubernetes.io/part-of: fiber"]
    return "\n".join(lines) + "\n"


def _rules(rules: Iterable[Rule]) -> str:
    return "rules:\n" + "".join(
        f"  # {rule.why}\n"
        f"  - apiGroups: [{_text(rule.group)}]\n"
        f"    resources: [{_text(rule.resource)}]\n"
        f"    verbs: [{', '.join(map(_text, rule.verbs))}]\n"
        for rule in rules
    )


def _binding(
    kind: str, role: str, namespace: str, users: Sequence[str], account: str | None = None
) -> str:
    group = "apiGroup: rbac.authorization.k8s.io"
    account = _text(account or role)
    return (
        f"roleRef:\n  {group}\n  kind: {kind}\n  name: {_text(role)}\n"
        f"subjects:\n  - kind: ServiceAccount\n    name: {account}\n    namespace: {_text(namespace)}\n"
        + "".join(f"  - {group}\n    kind: User\n    name: {_text(user)}\n" for user in users)
    )


def _text(value: str) -> str:
    """Quote a YAML string."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
