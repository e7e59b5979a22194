"""The parts of an AppWrapper that scheduling depends on, apart from its demand and priority."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR
from dispatcher.api.selector import selector_of
from dispatcher.core.model.requirements import ClusterRequirements


def requirements_of(
    annotations: Mapping[str, str], namespace: str, spec: AppWrapperSpec
) -> ClusterRequirements:
    """The cluster requirements of an AppWrapper; raises `SpecError` if one of its selectors cannot be parsed."""
    return ClusterRequirements(
        selector=selector_of(annotations, CLUSTER_SELECTOR),
        prefers=selector_of(annotations, CLUSTER_PREFERENCE),
        namespace=namespace,
        kinds=frozenset((wrapped.api_version, wrapped.kind) for wrapped in spec.wrapped),
    )


def expected_seconds(spec: AppWrapperSpec) -> int:
    """The run time that the author expects, in whole seconds; 0 if unknown."""
    expected = spec.scheduling.dispatch_duration.expected
    return int(expected.total_seconds()) if expected else 0


def limit_seconds(spec: AppWrapperSpec) -> int:
    """The longest run time that the author allows, in whole seconds; 0 if unlimited."""
    limit = spec.scheduling.dispatch_duration.limit
    return int(limit.total_seconds()) if limit else 0
