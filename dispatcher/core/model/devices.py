"""Extended resources whose devices kube-scheduler allocates by resource claims, which nothing counts.

A DeviceClass may name an extended resource. Where no node lists that resource, kube-scheduler makes a claim for each
pod that requests it. Each DeviceClass also has an implicit extended resource.
Source: https://github.com/kubernetes/enhancements/tree/master/keps/sig-scheduling/5004-dra-extended-resource
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass, its implicit extended resource."""

MOST_DEVICE_CLASSES: Final = 1000
"""DeviceClasses of one cluster whose extended resources are known; more than any cluster has."""


def is_of_device_class(resource: str, device_resources: Collection[str]) -> bool:
    """True if a DeviceClass backs a resource; `device_resources` are those that DeviceClasses of the cluster name."""
    return resource.startswith(IMPLICIT) or resource in device_resources


def has_device_class(resources: Iterable[str], device_resources: Collection[str]) -> bool:
    """True if a DeviceClass backs one of these resources; otherwise as `is_of_device_class`."""
    for each in resources:  # noqa: SIM110  # without a generator: a cycle asks this of every gang
        if is_of_device_class(each, device_resources):
            return True
    return False


def device_resources_of(device_classes: Iterable[object]) -> frozenset[str]:
    """The extended resources that these DeviceClasses name; anything unreadable is left out."""
    specs = (each.get("spec") for each in device_classes if isinstance(each, Mapping))
    names = (each.get("extendedResourceName") for each in specs if isinstance(each, Mapping))
    return frozenset(name for name in names if isinstance(name, str) and name)
