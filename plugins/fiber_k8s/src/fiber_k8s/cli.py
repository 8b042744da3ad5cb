"""``fiber k8s``: the backend's own commands."""

from __future__ import annotations

import click


@click.group("k8s", short_help="Things of Kubernetes alone.")
def command() -> None:
    """Things of Kubernetes alone."""


@command.command("rbac", short_help="Print the rights that Fiber needs, as YAML.")
@click.option("--namespace", metavar="NAME", help="Namespace; else the one in use.")
@click.option(
    "--service-account",
    default="fiber",
    show_default=True,
    metavar="NAME",
    help="Service account that gets them; the role has the same name.",
)
@click.option(
    "--user", "users", multiple=True, metavar="NAME", help="A person who gets them as well."
)
@click.option(
    "--gang",
    type=click.Choice(["none", "kueue", "volcano", "scheduler-plugins"]),
    help="What schedules groups; else as the setting says.",
)
@click.option(
    "--nodes", is_flag=True, help="Let nodes be listed too, a right of the whole cluster."
)
@click.option(
    "--exec",
    "may_exec",
    is_flag=True,
    help="Let programs be run in pods, as fiber exec and fiber cp do.",
)
@click.option(
    "--port-forward",
    "may_forward",
    is_flag=True,
    help="Let ports of pods be reached from outside, for programs that run there.",
)
def rbac(
    namespace: str | None,
    service_account: str,
    users: tuple[str, ...],
    gang: str | None,
    nodes: bool,
    may_exec: bool,
    may_forward: bool,
) -> None:
    """Print a ServiceAccount, a Role with the least that Fiber needs, and the RoleBinding.

    They are granted by fiber k8s rbac | kubectl apply -f -, and from then on used by
    fiber run in that namespace. The cluster is not asked.
    """
    from fiber.cli.session import Session
    from fiber.exceptions import BackendUnavailableError
    from fiber_k8s.config import K8sConfig
    from fiber_k8s.connection import connect
    from fiber_k8s.rbac import manifests

    config = Session.load("k8s").config.settings
    assert isinstance(config, K8sConfig)
    if namespace is None:
        try:
            connection = connect(config)
        except BackendUnavailableError:
            # whoever applies it may have another configuration
            namespace = config.namespace or "default"
        else:
            namespace = connection.namespace
            connection.close()
    options = {"--exec": may_exec, "--port-forward": may_forward}
    text = manifests(
        namespace,
        service_account,
        users=users,
        gang=gang or config.gang,
        nodes=nodes,
        options=[option for option, is_given in options.items() if is_given],
    )
    click.echo(text, nl=False)
