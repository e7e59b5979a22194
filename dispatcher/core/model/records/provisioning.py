"""Capacity that is requested before a gang's objects are created: the request of one attempt, and its answer.

A ProvisioningRequest (`autoscaling.x-k8s.io/v1`) asks the autoscaler of a cluster for the nodes of whole pod sets.
Until it is answered, the gang holds its quota and no capacity of the cluster.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct, field

from dispatcher.api.clusters.provisioning import ProvisioningClass


class Provisioning(Struct, frozen=True):
    """The ProvisioningRequest of one attempt.

    `request_uid` is empty until the request exists. `message` is what the class said last, `noted_at` when that was
    noted. The gang waits for capacity until `provisioned_at`.
    """

    asked: ProvisioningClass = field(name="class")  # history reads it by this name
    request_uid: str = ""
    message: str = ""
    noted_at: datetime | None = None
    provisioned_at: datetime | None = None
