"""Whether an account has the rights that Fiber needs, and what grants those it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fiber.model import Check
from fiber_k8s.client import Client
from fiber_k8s.rbac import EVERYBODYS, Right, Rule, rights

__all__ = ["ask", "judge", "question"]

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def ask(client: Client, wanted: Sequence[Right]) -> dict[Right, bool]:
    """Ask the cluster what we may do in our namespace.

    Raises:
        BackendError: it cannot be asked.
    """
    found = {}
    for right in wanted:
        verb, group, resource, sub = question(right)
        asked = {"namespace": client.namespace, "verb": verb, "group": group, "resource": resource}
        if sub:
            asked["subresource"] = sub
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = client.call("POST", _REVIEWS, f"tell whether we may {right}", body=body)
        found[right] = bool((answer.get("status") or {}).get("allowed"))
    return found


def question(right: Right) -> tuple[str, str, str, str]:
    """A right as it is asked for: verb, group, resource, part of it."""
    resource, _, sub = right.rule.resource.partition("/")
    return right.verb, right.rule.group, resource, sub


def judge(
    allowed: Mapping[Right, bool],
    who: str,
    namespace: str,
    account: str | None = None,
    *,
    gang: str = "none",
) -> Iterator[Check]:
    """A line for each kind of objects.

    Args:
        allowed: what was answered.
        who: who asked, for people.
        namespace: where.
        account: name of the service account that the rights are to be granted to; None for a
            person.
        gang: what schedules groups, as the setting of that name.
    """
    grant = f"fiber k8s rbac --namespace {namespace}"
    if gang != "none":
        grant += f" --gang {gang}"
    if account is None:
        fix = f"{grant} --user YOU | kubectl apply -f -"
    elif account == EVERYBODYS:
        # whatever else runs in the namespace would have them as well
        fix = f"{grant} | kubectl apply -f -, and fiber run --service-account fiber"
    else:
        fix = f"{grant} --service-account {account} | kubectl apply -f -"
    for rule in dict.fromkeys(right.rule for right in allowed):
        missing = [right.verb for right in rights([rule]) if not allowed.get(right)]
        yield Check(
            name=f"{who}: {rule.resource}",
            ok=not (missing and rule.needed),
            detail=_detail(rule, missing),
            fix=fix,
        )


def _detail(rule: Rule, missing: Sequence[str]) -> str:
    if not missing:
        return ", ".join(rule.verbs)
    lacking = f"not allowed: {', '.join(missing)}"
    return f"{lacking} ({rule.why})" if rule.needed else f"{lacking}; only for {rule.why}"
