"""Amounts of named resources, as exact integers.

Base units: milli for `cpu`, the resource's own unit (bytes, devices, pods) for everything else. Amounts
are signed: a node asked for more than it has is a debt, not a zero. A name that is absent is 0.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Final

LARGEST_AMOUNT: Final = 2**63 - 1
"""The largest amount of one resource that is accepted anywhere, in base units."""

PODS: Final = "pods"
"""The node resource that bounds the number of pods on a node: each pod takes one, even if it requests none."""

WELL_KNOWN: Final = ("cpu", "memory", "ephemeral-storage", PODS)
"""The resources that every kubelet lists; where names are bounded, these go first."""


def is_device(resource: str) -> bool:
    """True for a vendor's resource, such as `nvidia.com/gpu`: scarcer than cpu and memory."""
    return "/" in resource


def is_requestable(resource: str) -> bool:
    """True if a gang can ask for a resource: pods can request it, or it is the number of pods.

    Other names without a slash are of objects and of sums over a namespace: only a ResourceQuota counts them.
    Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/ and k8s.io/apimachinery, core/v1/helper.
    """
    if resource in WELL_KNOWN or resource.startswith("hugepages-"):
        return True
    return is_device(resource) and not resource.startswith(("requests.", "limits.", "count/"))


def is_gpu(resource: str) -> bool:
    """True for a resource that counts as GPUs, as in the views of history: `nvidia.com/gpu`, `gpu.intel.com/i915`."""
    return resource.endswith("/gpu") or resource.startswith("gpu.intel.com/")


def gpus(amounts: Mapping[str, int]) -> int:
    """The GPUs among amounts of resources."""
    return sum(amount for resource, amount in amounts.items() if is_gpu(resource))


class Resources(Mapping[str, int]):
    """An immutable, hashable vector of amounts by resource name; without zeros."""

    __slots__ = ("_amounts", "_hash")

    def __init__(self, amounts: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        self._amounts = {name: amount for name, amount in dict(amounts).items() if amount}
        self._hash: int | None = None

    def __getitem__(self, name: str) -> int:
        return self._amounts.get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._amounts

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    # `Mapping` has these too, but its views call `__getitem__` for each entry.

    def keys(self) -> KeysView[str]:
        """The names with an amount other than zero."""
        return self._amounts.keys()

    def values(self) -> ValuesView[int]:
        """The amounts other than zero."""
        return self._amounts.values()

    def items(self) -> ItemsView[str, int]:
        """The names with their amounts other than zero."""
        return self._amounts.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resources) and self._amounts == other._amounts

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._amounts.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Resources({dict(sorted(self._amounts.items()))!r})"

    def __add__(self, other: Mapping[str, int]) -> Resources:
        if not other:
            return self
        total = dict(self._amounts)
        for name, amount in other.items():
            total[name] = total.get(name, 0) + amount
        return Resources(total)

    def __sub__(self, other: Mapping[str, int]) -> Resources:
        if not other:
            return self
        total = dict(self._amounts)
        for name, amount in other.items():
            total[name] = total.get(name, 0) - amount
        return Resources(total)

    def __mul__(self, factor: int) -> Resources:
        return Resources({name: amount * factor for name, amount in self._amounts.items()})

    def positive_part(self) -> Resources:
        """Per resource max(0, amount), such as the reservation that is left of a demand."""
        if all(amount > 0 for amount in self._amounts.values()):
            return self
        return Resources({name: amount for name, amount in self._amounts.items() if amount > 0})

    def highest(self, other: Mapping[str, int]) -> Resources:
        """Per resource the larger of the two amounts (both absent is 0)."""
        names = {*self, *other}
        return Resources({name: max(self[name], other.get(name, 0)) for name in names})

    def lowest(self, other: Resources) -> Resources:
        """Per resource the smaller of the two amounts (absent is 0)."""
        return self - (self - other).positive_part()

    def times_in(self, free: Mapping[str, int]) -> int | None:
        """How often these amounts fit in `free`; None without any amount: then there is no limit."""
        return min(
            (max(0, free.get(name, 0)) // amount for name, amount in self._amounts.items() if amount > 0),
            default=None,
        )

    def fits_in(self, free: Mapping[str, int]) -> bool:
        """True if `free` has every requested amount; other resources may be negative."""
        # Without a generator or a call for each amount: a cycle calls this for every gang and cluster.
        available = free._amounts if isinstance(free, Resources) else free  # noqa: SLF001  # of the same class
        for name, amount in self._amounts.items():  # noqa: SIM110
            if amount > 0 and amount > available.get(name, 0):
                return False
        return True

    def shortfall(self, free: Mapping[str, int]) -> Resources:
        """Per resource how much is missing for this demand to fit; empty if it fits."""
        return Resources(
            {
                name: amount - free.get(name, 0)
                for name, amount in self._amounts.items()
                if amount > max(0, free.get(name, 0))
            }
        )


NOTHING: Final = Resources()


def sum_of(parts: Iterable[Resources]) -> Resources:
    """The sum of these amounts."""
    return sum(parts, start=NOTHING)


# Extended resources whose devices kube-scheduler allocates by resource claims, which nothing counts. A DeviceClass may
# name an extended resource. Where no node lists that resource, kube-scheduler makes a claim for each pod that requests
# it. Each DeviceClass also has an implicit extended resource.
# Source: https://github.com/kubernetes/enhancements/tree/master/keps/sig-scheduling/5004-dra-extended-resource

IMPLICIT_DEVICES: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass, its implicit extended resource."""

MOST_DEVICE_CLASSES: Final = 1000
"""DeviceClasses of one cluster whose extended resources are known; more than any cluster has."""


def is_of_device_class(resource: str, device_resources: Collection[str]) -> bool:
    """True if a DeviceClass backs a resource; `device_resources` are those that DeviceClasses of the cluster name."""
    return resource.startswith(IMPLICIT_DEVICES) or resource in device_resources


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
