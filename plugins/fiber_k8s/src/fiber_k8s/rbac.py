"""The rights that Fiber needs in a namespace: one list, and the objects that grant it; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

import attrs

__all__ = [
    "ACCOUNT",
    "EVERYBODYS",
    "NODES",
    "RULES",
    "Right",
    "Rule",
    "gang_rules",
    "grant",
    "manifests",
    "rights",
]


@attrs.frozen(kw_only=True)
class Rule:
    """What may be done with one kind of objects, and what that is for."""

    #: group of the API; "" for the core's
    group: str = ""
    #: plural, with a part of it behind a slash where only that is meant
    resource: str
    #: what may be done
    verbs: tuple[str, ...]
    #: one line for people
    why: str
    #: False for what only some commands need; a program runs without
    needed: bool = True


@attrs.frozen
class Right:
    """One verb of a rule, as it is asked for."""

    rule: Rule
    verb: str

    def __str__(self) -> str:
        group = f".{self.rule.group}" if self.rule.group else ""
        return f"{self.verb} {self.rule.resource}{group}"


#: in a namespace; the least
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
        why="keeping jobs where somebody deletes the Lease that they belong to",
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
        why="fiber exec and fiber cp",
        needed=False,
    ),
    Rule(
        resource="pods/portforward",
        verbs=("create", "get"),
        why="programs outside the cluster whose jobs are inside",
        needed=False,
    ),
    Rule(
        resource="persistentvolumeclaims",
        verbs=("list",),
        why="what fiber doctor says of claims",
        needed=False,
    ),
)
#: of the whole cluster, and never needed
NODES = Rule(
    resource="nodes",
    verbs=("list",),
    why="how many devices, CPUs and how much memory there are",
    needed=False,
)
#: the account that is granted the rights, and that programs have where there is one
ACCOUNT = "fiber"
#: the account of pods that name none
EVERYBODYS = "default"
_WHERE = re.compile(r'in the namespace "([^"]+)"')
_REFUSED = re.compile(
    r'User "(?P<user>(?:system:serviceaccount:[^:"]+:(?P<account>[^"]+))|[^"]+)" cannot'
)
#: what groups of pods are to those who schedule them
_GANGS = {
    "volcano": "scheduling.volcano.sh",
    "scheduler-plugins": "scheduling.x-k8s.io",
}


def rights(rules: Iterable[Rule] = RULES) -> list[Right]:
    """Each verb by itself."""
    return [Right(rule, verb) for rule in rules for verb in rule.verbs]


def gang_rules(gang: str) -> tuple[Rule, ...]:
    """What starting groups takes besides.

    Args:
        gang: the setting of that name.
    """
    group = _GANGS.get(gang)
    if group is None:
        return ()
    why = f"groups that start together, by {gang}"
    return (Rule(group=group, resource="podgroups", verbs=("create", "delete"), why=why),)


def grant(refusal: str) -> str:
    """The command that grants what the cluster refused.

    Args:
        refusal: the cluster's words; they name who was refused, and where.
    """
    where = _WHERE.search(refusal)
    command = "fiber k8s rbac" if where is None else f"fiber k8s rbac --namespace {where[1]}"
    who = _REFUSED.search(refusal)
    if who is None:
        return f"{command} | kubectl apply -f -"
    if who["account"] is None:
        return f"{command} --user {shlex.quote(who['user'])} | kubectl apply -f -"
    if who["account"] == EVERYBODYS:
        # whatever else runs in the namespace would have the rights as well
        return (
            f"{command} | kubectl apply -f -, and have the program's pod use the account {ACCOUNT}: "
            f"fiber run --service-account {ACCOUNT}, or serviceAccountName: {ACCOUNT} in a pod of yours"
        )
    return f"{command} --service-account {who['account']} | kubectl apply -f -"


def manifests(
    namespace: str,
    name: str = ACCOUNT,
    *,
    users: Sequence[str] = (),
    gang: str = "none",
    nodes: bool = False,
) -> str:
    """A service account with the rights, as YAML for ``kubectl apply``.

    Args:
        namespace: where it is, and where the rights hold.
        name: of the account, the role and the binding.
        users: people who get the rights too.
        gang: what schedules groups, as the setting of that name.
        nodes: also let nodes be listed, which is a right of the whole cluster.
    """
    where = {"name": name, "namespace": namespace}
    documents = [
        _document("v1", "ServiceAccount", where),
        _document("rbac.authorization.k8s.io/v1", "Role", where)
        + _rules((*RULES, *gang_rules(gang))),
        _document("rbac.authorization.k8s.io/v1", "RoleBinding", where)
        + _binding("Role", name, namespace, users),
    ]
    if nodes:
        # such names are the cluster's
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
    lines = ["rules:"]
    for rule in rules:
        lines += [
            f"  # {rule.why}",
            f"  - apiGroups: [{_text(rule.group)}]",
            f"    resources: [{_text(rule.resource)}]",
            f"    verbs: [{', '.join(map(_text, rule.verbs))}]",
        ]
    return "\n".join(lines) + "\n"


def _binding(
    kind: str, role: str, namespace: str, users: Sequence[str], account: str | None = None
) -> str:
    lines = [
        "roleRef:",
        "  apiGroup: rbac.authorization.k8s.io",
        f"  kind: {kind}",
        f"  name: {_text(role)}",
        "subjects:",
        "  - kind: ServiceAccount",
        f"    name: {_text(account or role)}",
        f"    namespace: {_text(namespace)}",
    ]
    for user in users:
        lines += [
            "  - apiGroup: rbac.authorization.k8s.io",
            "    kind: User",
            f"    name: {_text(user)}",
        ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """A text that YAML takes for nothing else."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
