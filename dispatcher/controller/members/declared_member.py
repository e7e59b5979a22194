"""A MemberCluster as its declaration says, or the error of a declaration that cannot be read."""

from __future__ import annotations

from msgspec import Struct

from dispatcher.api.membercluster import MemberCluster, parse_member_cluster
from dispatcher.api.potential import PotentialNodes
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.potential import pools_of
from dispatcher.core.model.quantity import QuantityError
from dispatcher.kube.client import Json
from dispatcher.text import one_line


class InvalidMember(Struct, frozen=True):
    """A MemberCluster that cannot be parsed, with the error in a sentence."""

    name: str
    message: str


def decode(raw: Json) -> MemberCluster | InvalidMember:
    """Read a MemberCluster; one that cannot be parsed is an `InvalidMember`."""
    try:
        declared = parse_member_cluster(raw)
        _check_pools(declared.potential)
        return declared
    except SpecError as error:
        return InvalidMember(raw["metadata"]["name"], one_line(str(error)))


def _check_pools(declared: PotentialNodes) -> None:
    """Refuse amounts that the API server accepts and a quantity cannot represent, such as 1e99."""
    try:
        pools_of(declared)
    except QuantityError as error:
        raise SpecError("spec.potential", str(error), "Change the value") from error
