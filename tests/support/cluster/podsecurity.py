"""Pod Security Admission, as far as the standard "restricted" goes; pure."""

from __future__ import annotations

from collections.abc import Iterator

from .store import Object

__all__ = ["ENFORCE", "complaint"]

#: label of a namespace
ENFORCE = "pod-security.kubernetes.io/enforce"
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
}


def complaint(level: str, spec: Object) -> str:
    """What a namespace with this level says of a pod; "" where it is taken.

    Args:
        level: value of the label.
        spec: of the pod.
    """
    found = list(_restricted(spec)) if level == "restricted" else []
    return f'violates PodSecurity "{level}:latest": {", ".join(found)}' if found else ""


def _restricted(spec: Object) -> Iterator[str]:
    whole = spec.get("securityContext") or {}
    kinds = ("initContainers", "containers")
    boxes = [one for kind in kinds for one in spec.get(kind) or ()]

    def named(test: object) -> str:
        names = [one["name"] for one in boxes if test(one.get("securityContext") or {})]  # type: ignore[operator]
        several = "s" if len(names) > 1 else ""
        return f"container{several} {', '.join(map(_quoted, names))}" if names else ""

    if who := named(lambda own: own.get("allowPrivilegeEscalation") is not False):
        yield (
            f"allowPrivilegeEscalation != false ({who} must set "
            "securityContext.allowPrivilegeEscalation=false)"
        )
    if who := named(lambda own: "ALL" not in ((own.get("capabilities") or {}).get("drop") or ())):
        yield (
            f'unrestricted capabilities ({who} must set securityContext.capabilities.drop=["ALL"])'
        )
    for volume in spec.get("volumes") or ():
        kind = next((key for key in volume if key != "name"), "")
        if kind not in _VOLUMES:
            name = _quoted(volume["name"])
            yield (
                f"restricted volume types (volume {name} uses restricted volume type "
                f"{_quoted(kind)})"
            )
    if who := named(lambda own: own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True):
        yield f"runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)"
    known = {"RuntimeDefault", "Localhost"}

    def profile(own: Object) -> object:
        return (own.get("seccompProfile") or whole.get("seccompProfile") or {}).get("type")

    if who := named(lambda own: profile(own) not in known):
        yield (
            f"seccompProfile (pod or {who} must set securityContext.seccompProfile.type to "
            '"RuntimeDefault" or "Localhost")'
        )


def _quoted(text: str) -> str:
    return f'"{text}"'
