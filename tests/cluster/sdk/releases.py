"""What a user writes differently from one release of the SDK to another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MODEST = {"image": "ray", "num_workers": 2, "num_gpus": 1}


@dataclass(frozen=True, slots=True)
class Release:
    """One release, and what it is told so that it works by AppWrappers on plain Kubernetes.

    `domain` is where the release has an Ingress lead to the dashboard of each cluster, wrapped beside it; "" if it
    wraps none. Without one `wait_ready` can wait for the cluster, not for its dashboard. `environment` is the folder of
    the Python that has what the release requires.
    """

    version: str
    imports: str
    domain: str = ""
    environment: str = "env"
    cluster: dict[str, Any] = field(default_factory=dict)
    queue: dict[str, Any] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """The modules that its users import."""
        return re.findall(r"^from (\S+) import", self.imports, re.MULTILINE)

    def make_cluster(self, namespace: str, name: str, **options: Any) -> str:  # noqa: ANN401
        """A cell that defines a variable `name`: a cluster of two workers with a GPU each, unless told otherwise."""
        told = {"name": name, "namespace": namespace, **MODEST, **self.cluster, **options}
        return f"{name} = Cluster(ClusterConfiguration(**{told!r}))"

    def list_all_queued(self, namespace: str) -> str:
        """An expression."""
        told = {"namespace": namespace, "print_to_console": False, **self.queue}
        return f"list_all_queued(**{told!r})"

    def dashboard(self, namespace: str, name: str) -> str | None:
        """Where the dashboard of a cluster is found, or None."""
        return f"http://ray-dashboard-{name}-{namespace}.{self.domain}" if self.domain else None


RELEASES = (
    Release(
        "0.12.1",
        imports="""
from codeflare_sdk.cluster.auth import KubeConfigFileAuthentication
from codeflare_sdk.cluster.awload import AWManager
from codeflare_sdk.cluster.cluster import Cluster, ClusterConfiguration, list_all_clusters, list_all_queued
from codeflare_sdk.cluster.model import AppWrapperStatus
""",
        domain="example.test",
        cluster={"ingress_domain": "example.test"},
    ),
    # The first to prefer Kueue: it is told to use MCAD. The CodeFlare operator was to make the Ingress.
    Release(
        "0.16.0",
        imports="""
from codeflare_sdk import AppWrapperStatus, AWManager, Cluster, ClusterConfiguration
from codeflare_sdk import KubeConfigFileAuthentication, get_cluster, list_all_clusters, list_all_queued
""",
        cluster={"mcad": True},
        queue={"mcad": True},
    ),
)

# The newest, which makes no AppWrappers any more: docs/codeflare-sdk.md has the cells that do. They import themselves.
AUTOSCALING = Release(
    "0.40.1",
    imports="from codeflare_sdk import KubeConfigFileAuthentication",
    environment="env-0.40.1",
)
