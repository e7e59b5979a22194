"""Policies of a member cluster that its operator chooses.

A module of its own, because `membercluster` is slow to import.
"""

from __future__ import annotations

from enum import StrEnum


class NamespacePolicy(StrEnum):
    """The policy for a cluster that lacks the namespace of an AppWrapper."""

    REQUIRE = "Require"
    CREATE = "Create"


class AcceptedNamespaces(StrEnum):
    """The namespaces of a cluster in which gangs are created."""

    LABELLED = "Labelled"
    """Namespaces with the label `DISPATCH_LABEL`."""
    ALL = "All"


class OnClusterLost(StrEnum):
    """The policy for the AppWrappers of a cluster that stays unreachable."""

    WAIT = "wait"
    REQUEUE = "requeue"
    FAIL = "fail"
