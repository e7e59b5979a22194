"""A ProvisioningRequest that a cluster has, as a value; `provisioning_request` reads it and needs what parses specs."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.core.kinds.object_status import ObjectState


class FoundRequest(NamedTuple):
    """The uid of a request, the class that it names, and the state that it reports.

    The name of the class is empty if the request has no readable one.
    """

    uid: str
    class_name: str
    state: ObjectState = ObjectState()
