"""What an operator may choose of a member cluster. Apart from `membercluster`, whose models take long to import."""

from __future__ import annotations

from enum import StrEnum


class NamespacePolicy(StrEnum):
    """What to do on a cluster where an AppWrapper's namespace is missing."""

    REQUIRE = "Require"
    CREATE = "Create"


class AcceptedNamespaces(StrEnum):
    """In which namespaces of a cluster gangs are created."""

    LABELLED = "Labelled"
    """In those that opted in, by the label `DISPATCH_LABEL`."""
    ALL = "All"


class OnClusterLost(StrEnum):
    """What becomes of the AppWrappers of a cluster that stays unreachable."""

    WAIT = "wait"
    REQUEUE = "requeue"
    FAIL = "fail"
