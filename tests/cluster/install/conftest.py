"""A fresh control plane for each file of tests of installations.

An API server refuses AppWrappers after the policies were removed and installed again: it finds no ConfigMap with the
kinds, although it is there (docs/install.md, "Uninstall"). So the files do not share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import build
from testbed.certificates import make_certificates
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.ports import Ports
from testbed.postgres import TlsPostgres, tls_binaries
from testbed.processes import Supervisor
from tests.cluster.install.installation import CHECKOUT, Helm, Kubectl

BLOG_NODES = Wanted(
    nodes=3,
    shape=Shape(cpu="8", memory="61Gi", gpu=1),
    crds=sorted(CHECKOUT.glob("testbed/crds/*.yaml")),
)
"""The cluster knows RayClusters, and nothing of the dispatcher."""


@pytest.fixture(scope="module")
def fresh(supervisor: Supervisor) -> Iterator[Plane]:
    """A cluster on which nothing of the dispatcher was installed, with KubeRay's operator."""
    plane = Plane(supervisor, build.ensure(), "fresh", with_ray_kinds(BLOG_NODES))
    plane.up()
    operator = KubeRay(supervisor, plane, plane.name)
    operator.up()
    yield plane
    operator.down()
    plane.down()


@pytest.fixture
def tls_postgres(supervisor: Supervisor, tmp_path: Path) -> Iterator[TlsPostgres]:
    """A Postgres that others reach only by TLS; the file `ca.crt` of its authority is in `tmp_path`."""
    binaries = tls_binaries()
    if binaries is None:
        pytest.skip("no Postgres with TLS: apt-get install postgresql")
    ports = Ports("postgres")
    with TlsPostgres(supervisor, binaries, ports["postgres"], make_certificates(tmp_path)) as server:
        yield server
    ports.release()


@pytest.fixture(scope="module")
def kubectl(fresh: Plane) -> Kubectl:
    return Kubectl(fresh)


@pytest.fixture(scope="module")
def helm(fresh: Plane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm at the fresh cluster."""
    return Helm(build.ensure_helm(), tmp_path_factory.mktemp("helm"), fresh)
