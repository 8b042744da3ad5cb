"""Access reviews: whether an account has the rights that Fiber needs, and how to grant others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fiber.model import Check
from fiber_k8s.client import Client
from fiber_k8s.rbac import DEFAULT_ACCOUNT, Right, Rule, rights

__all__ = ["allowed_rights", "review_fields", "rights_checks"]

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def allowed_rights(client: Client, asked: Sequence[Right]) -> dict[Right, bool]:
    """Return which rights the client's user has in its namespace, by SelfSubjectAccessReviews.

    Raises:
        BackendError: the cluster cannot be reached, or refuses.
    """
    found = {}
    for right in asked:
        verb, group, resource, sub = review_fields(right)
        attributes = {
            "namespace": client.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
        }
        if sub:
            attributes["subresource"] = sub
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = client.call("POST", _REVIEWS, f"tell whether we may {right}", body=body)
        found[right] = bool((answer.get("status") or {}).get("allowed"))
    return found


def review_fields(right: Right) -> tuple[str, str, str, str]:
    """Return a right as a review has it: verb, API group, resource, subresource."""
    resource, _, sub = right.rule.resource.partition("/")
    return right.verb, right.rule.group, resource, sub


def rights_checks(
    allowed: Mapping[Right, bool],
    subject: str,
    namespace: str,
    account: str | None = None,
    *,
    gang: str = "none",
) -> Iterator[Check]:
    """Yield a check for each rule.

    Args:
        allowed: results of the reviews.
        subject: the subject in words, such as "you may"; begins the check's name.
        namespace: of the rights.
        account: service account that the rights are to be granted to; None for a user.
        gang: value of the setting ``gang``.
    """
    grant = f"fiber k8s rbac --namespace {namespace}"
    if gang != "none":
        grant += f" --gang {gang}"
    then = ""
    if account is None:
        grant += " --user YOU"
    elif account == DEFAULT_ACCOUNT:
        # all other pods of the namespace would have them as well
        then = ", and fiber run --service-account fiber"
    else:
        grant += f" --service-account {account}"
    for rule in dict.fromkeys(right.rule for right in allowed):
        missing = [right.verb for right in rights([rule]) if not allowed.get(right)]
        yield Check(
            name=f"{subject}: {rule.resource}",
            ok=not (missing and rule.needed),
            detail=_detail(rule, missing),
            fix=f"{grant}{f' {rule.option}' if rule.option else ''} | kubectl apply -f -{then}",
        )


def _detail(rule: Rule, missing: Sequence[str]) -> str:
    if not missing:
        return ", ".join(rule.verbs)
    lacking = f"not allowed: {', '.join(missing)}"
    return f"{lacking} ({rule.why})" if rule.needed else f"{lacking}; only for {rule.why}"
